"""ONNX models whose shapes are known only when they run, and what ONNX Runtime computes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Dims = Sequence[int | str | None] | None
OPSET, IR = 18, 9
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def tensor(name: str, dims: Dims, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output; a dimension is a number, a symbol or None, `dims` is None for an unknown rank."""
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """A checked model."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "dynamic", list(inputs), list(outputs), initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.checker.check_model(made)
    return made


def reference(source: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, dict(inputs))
    return found


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Random numbers of float32."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def branching() -> onnx.ModelProto:
    """out = sum(x) > 0 ? x + x : concat(x, x), which have other shapes."""
    then = helper.make_graph([node("Add", ["x", "x"], ["twice"])], "then", [], [tensor("twice", [None])])
    other = helper.make_graph([node("Concat", ["x", "x"], ["both"], axis=0)], "else", [], [tensor("both", [None])])
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["c"]),
        node("If", ["c"], ["out"], then_branch=then, else_branch=other),
    ]
    return model(nodes, [tensor("x", [None])], [tensor("out", [None])], {"zero": np.zeros((), np.float32)})


def staying(rows: int | str) -> onnx.ModelProto:
    """A loop whose body takes one of two ways of the same shape, and a product of what comes out."""
    ways = [helper.make_graph([node(op, ["carried"], [op])], op, [], [tensor(op, [rows, 4])]) for op in ("Tanh", "Neg")]
    nodes = [
        node("ReduceSum", ["carried"], ["sum"], keepdims=0),
        node("Less", ["sum", "zero"], ["negative"]),
        node("If", ["negative"], ["way"], then_branch=ways[0], else_branch=ways[1]),
        node("Add", ["way", "x"], ["more"]),
        node("Identity", ["on"], ["on_again"]),
    ]
    carried = [tensor("i", [], INT64), tensor("on", [], BOOL), tensor("carried", None)]
    body = helper.make_graph(nodes, "body", carried, [tensor("on_again", [], BOOL), tensor("more", None)])
    outer = [node("Loop", ["count", "", "x"], ["last"], body=body), node("MatMul", ["last", "w"], ["out"])]
    fed = [tensor("count", [], INT64), tensor("x", [rows, 4])]
    weights = {"zero": np.zeros((), np.float32), "w": floats(4, 2)}
    return model(outer, fed, [tensor("out", [rows, 2])], weights)


def attention() -> onnx.ModelProto:
    """Heads taken apart and joined by shapes that are computed, under a causal mask."""
    nodes = [
        node("Shape", ["x"], ["dims"]),
        node("Gather", ["dims", "zero"], ["rows"], axis=0),
        node("Gather", ["dims", "one"], ["length"], axis=0),
        node("Unsqueeze", ["rows", "first"], ["rows_"]),
        node("Unsqueeze", ["length", "first"], ["length_"]),
        node("Concat", ["rows_", "length_", "heads"], ["apart"], axis=0),
        node("Concat", ["rows_", "length_", "minus"], ["joined"], axis=0),
        node("Reshape", ["x", "apart"], ["split"]),
        node("Transpose", ["split"], ["q"], perm=[0, 2, 1, 3]),
        node("Transpose", ["split"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Concat", ["length_", "length_"], ["square"], axis=0),
        node("ConstantOfShape", ["square"], ["ones"], value=helper.make_tensor("v", 1, [1], [-1e4])),
        node("Trilu", ["ones", "one"], ["later"], upper=1),
        node("Add", ["scores", "later"], ["masked"]),
        node("Softmax", ["masked"], ["weights"]),
        node("MatMul", ["weights", "q"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "joined"], ["out"]),
    ]
    numbers = {"zero": 0, "one": 1, "first": [0], "heads": [2, 4], "minus": [-1]}
    weights = {name: np.array(number) for name, number in numbers.items()}
    return model(nodes, [tensor("x", ["b", "n", 8])], [tensor("out", ["b", "n", 8])], weights)
