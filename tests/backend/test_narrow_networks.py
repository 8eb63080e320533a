"""Networks of half precision, and ones that compute with integers and conditions, as machine code."""

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_backend import RetuneBackend

Array = NDArray[Any]


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, tuple[int, ...]]],
    outputs: dict[str, int],
    weights: dict[str, Array],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return onnx.shape_inference.infer_shapes(model)


def _small_network(dtype: Any, kind: int) -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "d", "e"], ["g"]),
        helper.make_node("Sigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["g", "s"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=1),
    ]
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "d": (128, 10), "e": (10,)}
    weights = {name: (0.2 * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}
    return _model(nodes, {"x": (kind, (1, 3, 8, 8))}, {"y": kind}, weights)


@pytest.mark.parametrize(
    ("dtype", "kind", "tolerance"),
    [(np.float16, TensorProto.FLOAT16, 2e-3), (np.float64, TensorProto.DOUBLE, 1e-12)],
)
def test_a_network_of_other_floats(dtype: Any, kind: int, tolerance: float) -> None:
    image = np.random.default_rng(4).standard_normal((1, 3, 8, 8)).astype(dtype)
    model = _small_network(dtype, kind)
    (found,) = RetuneBackend.prepare(model).run([image])
    wide = {np.float16: _small_network(np.float32, TensorProto.FLOAT), np.float64: model}[dtype]
    feed = image.astype(np.float32) if dtype == np.float16 else image
    (wanted,) = onnx.reference.ReferenceEvaluator(wide).run(None, {"x": feed})
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float64), np.asarray(wanted), rtol=0, atol=tolerance)


def test_a_network_of_integers_and_conditions() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"]),
        helper.make_node("Equal", ["tokens", "none"], ["empty"]),
        helper.make_node("Not", ["empty"], ["full"]),
        helper.make_node("Cast", ["full"], ["mask"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["mask", "last"], ["count"], keepdims=0),
        helper.make_node("ReduceSum", ["e", "deep"], ["score"], keepdims=0),
        helper.make_node("Where", ["full", "score", "lowest"], ["seen"]),
        helper.make_node("ArgMax", ["seen"], ["best"], axis=1, keepdims=0),
    ]
    weights: dict[str, Array] = {
        "table": np.random.default_rng(1).integers(-9, 9, (12, 5)).astype(np.int32),
        "none": np.array(0),
        "last": np.array([1]),
        "deep": np.array([2]),
        "lowest": np.array(-1000, np.int32),
    }
    outputs: dict[str, int] = {"count": TensorProto.INT32, "full": TensorProto.BOOL, "best": TensorProto.INT64}
    model = _model(nodes, {"tokens": (TensorProto.INT64, (2, 6))}, outputs, weights)
    tokens = np.array([[3, 0, 11, 5, 0, 1], [0, 7, 7, 2, 9, 0]])
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, {"tokens": tokens})
    for ours, theirs in zip(RetuneBackend.prepare(model).run([tokens]), wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
