"""What reads an image between its elements, and Fourier transforms, give what ONNX Runtime gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.compiler.graph.ir import Graph

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Graph]
Weights = dict[str, np.ndarray[Any, Any]]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample_matches_onnxruntime(
    mode: str, padding: str, corners: int, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    attributes: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    node = helper.make_node("GridSample", ["x", "g"], ["y"], **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3, 5, 4), "g": (2, 3, 6, 2)}, opset=20))


def test_grid_sample_of_volumes(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("GridSample", ["x", "g"], ["y"])
    agrees_with_onnxruntime(model_of([node], {"x": (1, 2, 3, 5, 4), "g": (1, 2, 3, 2, 3)}, opset=20))


REGIONS = np.array([[-1, 0, 5, 7], [2, 3, 4, 4], [6, 1, 20, 9]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("aligned", ["half_pixel", "output_half_pixel"])
def test_roi_align_matches_onnxruntime(
    mode: str, aligned: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": aligned, "spatial_scale": 0.5}
    attributes |= {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    node = helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], **attributes)
    weights: Weights = {"r": REGIONS, "b": np.array([1, 0, 1])}
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3, 6, 7)}, weights=weights))


def test_deformable_convolution_matches_onnxruntime(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    rng = np.random.default_rng(1)
    attributes: dict[str, Any] = {"group": 2, "offset_group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1]}
    node = helper.make_node("DeformConv", ["x", "w", "o", "b", "m"], ["y"], **attributes)
    weights: Weights = {
        "w": rng.standard_normal((6, 2, 3, 2), dtype=np.float32),
        "b": rng.standard_normal(6, dtype=np.float32),
    }
    inputs = {"x": (2, 4, 6, 5), "o": (2, 24, 3, 5), "m": (2, 12, 3, 5)}
    agrees_with_onnxruntime(model_of([node], inputs, weights=weights, opset=19))


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [((2, 6, 1), {}), ((2, 6, 2), {}), ((2, 7, 1), {"onesided": 1}), ((1, 5, 2), {"inverse": 1})],
)
def test_fourier_transform_matches_onnxruntime(
    shape: tuple[int, ...], attributes: dict[str, Any], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    agrees_with_onnxruntime(model_of([helper.make_node("DFT", ["x"], ["y"], axis=1, **attributes)], {"x": shape}))


def test_short_time_fourier_transform(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    weights: Weights = {"step": np.array(3), "window": np.hanning(8).astype(np.float32)}
    agrees_with_onnxruntime(model_of([node], {"x": (2, 40, 1)}, weights=weights))


BLOCKS: list[tuple[str, tuple[int, ...], Weights, dict[str, Any]]] = [
    ("Col2Im", (2, 12, 20), {"i": np.array([5, 6]), "k": np.array([2, 2])}, {}),
    ("Col2Im", (1, 8, 12), {"i": np.array([6, 6]), "k": np.array([2, 2])}, {"strides": [2, 2], "pads": [1, 0, 0, 2]}),
    ("Det", (2, 3, 3), {}, {}),
    ("Det", (4, 4), {}, {}),
]


@pytest.mark.parametrize(("op_type", "shape", "weights", "attributes"), BLOCKS)
def test_sampling_operators_match_onnxruntime(
    op_type: str,
    shape: tuple[int, ...],
    weights: Weights,
    attributes: dict[str, Any],
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    node = helper.make_node(op_type, ["x", *weights], ["y"], **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": shape}, weights=weights, opset=18))


@pytest.mark.parametrize("order", [0, 1])
def test_places_of_the_largest(order: int, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 0, 0]}
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], storage_order=order, **attributes)
    model = model_of([node], {"x": (2, 3, 6, 5)}, ("y", "i"))
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    agrees_with_onnxruntime(model)


def test_unpooling_matches_onnxruntime(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    pool = helper.make_node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2])
    back = helper.make_node("MaxUnpool", ["p", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    agrees_with_onnxruntime(model_of([pool, back], {"x": (2, 3, 6, 4)}))
