"""Reductions, softmax and normalizations compute what ONNX Runtime computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

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
