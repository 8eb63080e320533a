"""The same small networks at operator sets from 11 to the newest, with weights inside and outside of the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.pipeline import optimize
from tests.support.run_program import run_program

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = sorted({11, 13, 17, 21, NEWEST})


def _arrays(**shapes: tuple[int, ...]) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(2)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def _axes(
    op_type: str, x: str, y: str, axes: list[int], opset: int, since: int, **attributes: Any
) -> list[onnx.NodeProto]:
    """A node whose axes are an attribute before operator set `since`, and an operand from then on."""
    if opset < since:
        return [helper.make_node(op_type, [x], [y], axes=axes, **attributes)]
    constant = helper.make_node("Constant", [], [f"{y}_axes"], value=numpy_helper.from_array(np.array(axes)))
    return [constant, helper.make_node(op_type, [x, f"{y}_axes"], [y], **attributes)]


def vision(opset: int) -> onnx.ModelProto:
    """A convolution, batch norm, pool, mean over axes, dense layer, softmax."""
    norm = helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        norm,
        helper.make_node("Clip", ["n", "low", "high"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        *_axes("ReduceMean", "p", "g", [2, 3], opset, 18, keepdims=0),
        helper.make_node("Gemm", ["g", "d"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=1),
    ]
    weights = _arrays(w=(4, 3, 3, 3), s=(4,), b=(4,), m=(4,), v=(4,), d=(4, 5))
    weights["v"] = np.abs(weights["v"]) + 1
    weights |= {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    return _model(nodes, {"x": (1, 3, 7, 7)}, weights, opset)


def sequence(opset: int) -> onnx.ModelProto:
    """A product, a layer norm written out, split heads, an attention, squeezed and expanded axes."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        *_axes("ReduceMean", "h", "mean", [-1], opset, 18, keepdims=1),
        helper.make_node("Sub", ["h", "mean"], ["c"]),
        helper.make_node("Mul", ["c", "c"], ["cc"]),
        *_axes("ReduceSum", "cc", "var", [-1], opset, 13, keepdims=1),
        helper.make_node("Sqrt", ["var"], ["sd"]),
        helper.make_node("Div", ["c", "sd"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["n", "t"], ["qk"]),
        helper.make_node("Softmax", ["qk"], ["a"], axis=2),
        helper.make_node("MatMul", ["a", "n"], ["o"]),
        *_axes("Unsqueeze", "o", "u", [1], opset, 13),
        *_axes("Squeeze", "u", "y", [1], opset, 13),
    ]
    return _model(nodes, {"x": (2, 5, 6)}, _arrays(w=(6, 8)), opset)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    weights: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    opset: int,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def _result(model: onnx.ModelProto | Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    graph = optimize(load_model(model))
    (found,) = evaluate(graph, _arrays(**{value.name: value.shape for value in graph.inputs}))
    return found


@pytest.mark.parametrize("build", [vision, sequence])
@pytest.mark.parametrize("opset", OPSETS)
def test_every_operator_set_gives_the_same(opset: int, build: Callable[[int], onnx.ModelProto]) -> None:
    model = build(opset)
    (value,) = model.graph.input
    shape = tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
    (wanted,) = onnx.reference.ReferenceEvaluator(build(17)).run(None, _arrays(x=shape))
    np.testing.assert_allclose(_result(model), np.asarray(wanted), rtol=1e-4, atol=1e-5)


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    model = vision(17)
    inside = _result(model)
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size > 0
    np.testing.assert_array_equal(_result(path), inside)


def _sums_of_rows(batch: int | str, iterations: int | str) -> onnx.ModelProto:
    """A scan as operator set 8 has it, over a batch: the running sums of rows, backwards, less the start."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["s", "row"], ["sum"]), helper.make_node("Neg", ["sum"], ["made"])]
    taken, made = ([value(name, TensorProto.FLOAT, [2]) for name in names] for names in (("s", "row"), ("sum", "made")))
    body = helper.make_graph(nodes, "turn", taken, made)
    scan = helper.make_node("Scan", ["", "start", "x"], ["y", "z"], body=body, num_scan_inputs=1, directions=[1])
    outer = [{"start": [batch, 2], "x": [batch, iterations, 2]}, {"y": [batch, 2], "z": [batch, iterations, 2]}]
    taken, made = ([value(name, TensorProto.FLOAT, dims) for name, dims in each.items()] for each in outer)
    graph = helper.make_graph([scan], "old", taken, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)


def test_the_batched_scan_of_operator_set_8() -> None:
    inputs = _arrays(start=(3, 2), x=(3, 4, 2))
    sums = inputs["start"][:, None] + np.cumsum(inputs["x"][:, ::-1], axis=1)
    static = evaluate(load_model(_sums_of_rows(3, 4)), inputs)
    loops = run_program(load_program(_sums_of_rows("batch", "turns")), inputs)
    for found in (static, loops):
        np.testing.assert_allclose(found[0], sums[:, -1], rtol=1e-5)
        np.testing.assert_allclose(found[1], -sums, rtol=1e-5)
