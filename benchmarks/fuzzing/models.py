"""Small ONNX models, and the importer as a `FuzzCase`.

The models are valid and import in milliseconds; they have convolutions, quantized values, indices, branches, loops,
scans and local functions. Some inputs are models made to ask for much: long chains, functions that call each other
often, long scans, names that are not UTF-8, external data with odd names.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.fuzzing.case import FuzzCase, drawn
from benchmarks.fuzzing.mutations import mutated_message
from retune.compiler.core.errors import ModelError
from retune.compiler.frontend.importer import load_model

_IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def small_models() -> list[bytes]:
    """The models."""
    return [_dense(), _convolutional(), _controlled(), _places(), _functions(3, 2), _scan(3)]


def _dense() -> bytes:
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"], transB=1), helper.make_node("Relu", ["g"], ["y"])]
    return _model(nodes, {"w": rng.random((3, 5), np.float32), "b": rng.random(3, np.float32)}, (2, 5))


def _convolutional() -> bytes:
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[1, 1]),
        make("BatchNormalization", ["c", "four", "four", "four", "four"], ["n"]),
        make("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("QuantizeLinear", ["p", "scale", "zero"], ["q"]),
        make("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        make("Resize", ["d", "", "scales"], ["r"], mode="linear"),
        make("Softmax", ["r"], ["y"], axis=-1),
    ]
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": np.ones((4, 3, 3, 3), np.float32),
        "four": np.ones(4, np.float32),
        "scale": np.array(0.25, np.float32),
        "zero": np.array(3, np.uint8),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    return _model(nodes, weights, (1, 3, 6, 6))


def _places() -> bytes:
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["size"]),
        make("Gather", ["size", "second"], ["width"], axis=0),
        make("Concat", ["width", "minus"], ["shape"], axis=0),
        make("Reshape", ["x", "shape"], ["r"]),
        make("Slice", ["r", "starts", "ends"], ["s"]),
        make("Gather", ["s", "places"], ["g"], axis=1),
        make("Pad", ["g", "pads"], ["p"], mode="reflect"),
        make("Tile", ["p", "repeats"], ["t"]),
        make("ReduceMean", ["t"], ["y"], axes=[0], keepdims=1),
    ]
    weights = {
        "second": np.array([1]),
        "minus": np.array([-1]),
        "starts": np.array([0, 1]),
        "ends": np.array([4, 9]),
        "places": np.array([0, 1, -1]),
        "pads": np.array([0, 1, 0, 1]),
        "repeats": np.array([1, 2]),
    }
    return _model(nodes, weights, (4, 6))


def _controlled() -> bytes:
    make, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [make("Add", ["carried", "x"], ["next"]), make("Identity", ["going"], ["go"])],
        "body",
        [value("turn", TensorProto.INT64, ()), value("going", TensorProto.BOOL, ()), value("carried", 1, (2, 3))],
        [value("go", TensorProto.BOOL, ()), value("next", 1, (2, 3)), value("next", 1, (2, 3))],
    )
    body.output[2].name = "each"
    body.node.append(make("Neg", ["next"], ["each"]))
    branches = [
        helper.make_graph([make(kind, ["sum"], [f"{kind}_out"])], kind, [], [value(f"{kind}_out", 1, (2, 3))])
        for kind in ("Relu", "Tanh")
    ]
    nodes = [
        make("Loop", ["turns", "go0", "x"], ["sum", "all"], body=body),
        make("If", ["go0"], ["z"], then_branch=branches[0], else_branch=branches[1]),
        make("ReduceSum", ["all", "axes"], ["t"], keepdims=0),
        make("Add", ["z", "t"], ["y"]),
    ]
    return _model(nodes, {"turns": np.array(3), "go0": np.array(True), "axes": np.array([0])}, (2, 3))


def _in_row(ops: Sequence[str], domain: str = "", names: tuple[str, str] = ("x", "y")) -> list[onnx.NodeProto]:
    steps = pairwise([names[0], *(f"v{number}" for number in range(1, len(ops))), names[1]])
    return [helper.make_node(op, [one], [two], domain=domain) for op, (one, two) in zip(ops, steps, strict=True)]


def _functions(levels: int, calls: int) -> bytes:
    """A chain of functions, each of which calls the next so often."""
    functions = []
    for level in range(levels):
        callee, domain = ("Relu", "") if level == levels - 1 else (f"f{level + 1}", "own")
        nodes = _in_row([callee] * calls, domain, ("a", "b"))
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, _IMPORTS))
    return _model(_in_row(["f0"], "own"), {}, (2, 3), functions)


def _scan(length: int) -> bytes:
    row = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3,)) for name in "abcd"]
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
    body = helper.make_graph(nodes, "body", row[:2], row[2:])
    scan = helper.make_node("Scan", ["zero", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    return _model([scan], {"zero": np.zeros(3, np.float32)}, (length, 3))


def _model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    shape: tuple[int, ...],
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=_IMPORTS, functions=functions, ir_version=8)
    return bytes(model.SerializeToString())


def _edited(data: bytes, draw: Random) -> bytes:
    """A message with one or two fields changed, which no longer need be a model."""
    model = onnx.load_model_from_string(data)
    for _ in range(draw.choice((1, 1, 2))):
        mutated_message(model, draw)
    return bytes(model.SerializeToString())


def _demanding(data: bytes, draw: Random) -> bytes:
    """A small file that asks for much, or a model with odd names."""
    kind = draw.randrange(5)
    if kind == 0:
        return _functions(draw.choice((5, 12, 30, 199, 500)), draw.choice((1, 2, 3)))
    if kind == 1:
        return _scan(draw.choice((0, 1, 200, 20_000, 300_000)))
    if kind == 2:
        return _model(_in_row(draw.choices(("Relu", "Sqrt", "Neg"), k=draw.choice((30, 300, 3000)))), {}, (2, 3))
    model = onnx.load_model_from_string(data)
    if kind == 3:
        names = [name for node in model.graph.node for name in (node.op_type, *node.input, *node.output) if name]
        name = draw.choice(names).encode()
        return data.replace(name, draw.choice((b"\xff", b"\x80", b"\xc0")) + name[1:])
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        name = draw.choice(("w" * draw.choice((1, 255, 256, 5000)), "../w", "/dev/zero", "w/" * 3000, "", "w\0"))
        tensor.external_data.add(key="location", value=name)
    return bytes(model.SerializeToString())


def _load(path: Path) -> object:
    return load_model(path)


_MAKE = drawn(_edited, _edited, _edited, _demanding)
CASES = tuple(
    FuzzCase(name, small_models, _MAKE, _load, (ModelError,), suffix)
    for name, suffix in (("onnx", ".onnx"), ("onnx-json", ".json"))
)
