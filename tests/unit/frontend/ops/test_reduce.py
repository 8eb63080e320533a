"""Reductions, softmax and normalizations compute what ONNX Runtime computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Any]

REDUCTIONS = ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"]


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [2, -1], None])
def test_axes_as_attribute(
    op_type: str, keepdims: int, axes: list[int] | None, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    attributes: dict[str, Any] = {} if axes is None else {"axes": axes}
    node = helper.make_node(op_type, ["x"], ["y"], keepdims=keepdims, **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3, 4, 5)}, opset=13))


@pytest.mark.parametrize("op_type", [*REDUCTIONS, "ReduceSum"])
def test_axes_as_operand(op_type: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node(op_type, ["x", "axes"], ["y"], keepdims=0)
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3, 4)}, weights={"axes": np.asarray([-1, 0])}, opset=18))


def test_no_axes_may_mean_nothing(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], noop_with_empty_axes=1)
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3)}))


@pytest.mark.parametrize("op_type", ["ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("opset", [11, 18])
def test_logarithms_of_sums_do_not_overflow(op_type: str, dtype: str, opset: int, model_of: ModelOf) -> None:
    axes: dict[str, Any] = {"axes": [1]} if opset < 18 else {}
    weights = {"x": np.array([[700, 699, 1], [3, 3, 3]], dtype), **({"a": np.array([1])} if opset == 18 else {})}
    node = helper.make_node(op_type, [*weights], ["y"], keepdims=0, **axes)
    graph = load_model(model_of([node], {}, weights=weights, opset=opset), name="case")
    x = weights["x"].astype("float64")
    wanted = np.logaddexp.reduce(x, axis=1) if op_type.endswith("Exp") else np.log(x.sum(axis=1))
    (found,) = evaluate(graph, {})
    np.testing.assert_allclose(found, wanted.astype(dtype), rtol=1e-6)


def test_the_logarithm_of_a_sum_of_infinities(model_of: ModelOf) -> None:
    node = helper.make_node("ReduceLogSumExp", ["x"], ["y"], axes=[1], keepdims=1)
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [-np.inf, 1]], np.float32)
    (found,) = evaluate(load_model(model_of([node], {}, weights={"x": x}, opset=13)), {})
    np.testing.assert_allclose(found[:, 0], [-np.inf, np.inf, 1], rtol=1e-6)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("rest", [(), (5,), (3, 2)])
def test_group_normalization(opset: int, rest: tuple[int, ...], model_of: ModelOf) -> None:
    rng = np.random.default_rng(3)
    count = 6 if opset >= 21 else 2  # a factor for each channel, or for each group
    weights = {key: rng.standard_normal(count, dtype=np.float32) for key in "sb"}
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2, epsilon=1e-3)
    x = rng.standard_normal((2, 6, *rest), dtype=np.float32)
    model = model_of([node], {"x": x.shape}, weights=weights, opset=opset)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape))
    (found,) = evaluate(load_model(model), {"x": x})
    groups = x.reshape(2, 2, -1)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-3)
    scale, bias = (np.repeat(weights[key], 6 // count).reshape(6, *(1 for _ in rest)) for key in "sb")
    np.testing.assert_allclose(found, normal.reshape(x.shape) * scale + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmax_of_every_opset_matches_onnxruntime(
    op_type: str, opset: int, axis: int | None, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    node = helper.make_node(op_type, ["x"], ["y"], **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": (3, 4, 5)}, opset=opset))


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_matches_onnxruntime(axis: int, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=axis)
    shape = (5,) if axis == -1 else (4, 5)
    rng = np.random.default_rng(0)
    weights = {key: rng.standard_normal(shape, dtype=np.float32) for key in "sb"}
    agrees_with_onnxruntime(model_of([node], {"x": (3, 4, 5)}, weights=weights))


def test_instance_normalization_matches_onnxruntime(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3, 4, 5), "s": (3,), "b": (3,)}))
