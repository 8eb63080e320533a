"""Einsum, resizing, transposed convolutions, pools in 3-D, indices and running totals give what ONNX Runtime gives."""

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

EINSUMS = [
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("...ij,jk", (2, 3, 4), (4, 5)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("abc,dc->bd", (2, 3, 4), (5, 4)),
    ("i,j->ij", (3,), (4,)),
]


@pytest.mark.parametrize(("equation", "first", "second"), EINSUMS)
def test_einsum_matches_onnxruntime(
    equation: str,
    first: tuple[int, ...],
    second: tuple[int, ...],
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation)
    agrees_with_onnxruntime(model_of([node], {"a": first, "b": second}))


RESIZES: list[dict[str, Any]] = [
    {"mode": "linear"},
    {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "nearest", "nearest_mode": "ceil"},
    {"mode": "cubic", "exclude_outside": 1},
]


@pytest.mark.parametrize("attributes", RESIZES)
@pytest.mark.parametrize("scales", [(1, 1, 2.5, 1.5), (1, 1, 0.5, 0.75)])
def test_resize_matches_onnxruntime(
    attributes: dict[str, Any], scales: tuple[float, ...], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes)
    weights = {"s": np.asarray(scales, np.float32)}
    agrees_with_onnxruntime(model_of([node], {"x": (1, 2, 4, 8)}, weights=weights))


def test_a_place_on_an_element_is_rounded_as_onnxruntime_does(
    model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    modes = {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": "ceil"}
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest", axes=[0, 1], **modes)
    model = model_of([node], {"x": (7, 1, 3)}, weights={"s": np.array([0.5, 2], np.float32)}, opset=18)
    agrees_with_onnxruntime(model)


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 4, 5), (3, 2, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 4, 4, 5), (4, 2, 3, 2), {"group": 2, "strides": [2, 1], "output_padding": [1, 0]}),
    ((2, 3, 6), (3, 2, 4), {"strides": [2], "pads": [1, 1]}),
    ((1, 3, 6), (3, 2, 5), {"strides": [3], "output_padding": [1]}),
    ((1, 3, 6), (3, 2, 3), {"dilations": [2]}),
    ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), {"strides": [2, 1, 2]}),
]


@pytest.mark.parametrize(("shape", "weight", "attributes"), TRANSPOSED)
def test_transposed_convolution_matches_onnxruntime(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: dict[str, Any],
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    weights: Weights = {"w": np.random.default_rng(2).standard_normal(weight, dtype=np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": shape}, weights=weights))


SCATTERED: list[tuple[tuple[int, ...], Any, tuple[int, ...], str]] = [
    ((6, 4), [[1], [2], [3]], (3, 4), "none"),
    ((6, 4), [[0], [1], [2], [3], [4], [5]], (6, 4), "none"),
    ((6, 4), [[5], [-6], [3]], (3, 4), "none"),
    ((6, 4), [[5, 1], [0, 2]], (2,), "none"),
    ((6, 4), [[5], [0], [3]], (3, 4), "max"),
    ((6, 4), [[5], [5], [3]], (3, 4), "add"),
    ((6, 4), np.zeros((0, 1)), (0, 4), "add"),
    ((6, 4, 2), [[[5, 1], [0, 2]], [[1, 1], [-1, -1]]], (2, 2, 2), "mul"),
]


@pytest.mark.parametrize(("shape", "places", "updates", "reduction"), SCATTERED)
def test_updates_at_constant_places_match_onnxruntime(
    shape: tuple[int, ...],
    places: Any,
    updates: tuple[int, ...],
    reduction: str,
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction)
    model = model_of([node], {"x": shape, "u": updates}, weights={"i": np.array(places, np.int64)}, opset=18)
    agrees_with_onnxruntime(model)


SINGLE: list[tuple[str, tuple[int, ...], Weights, dict[str, Any]]] = [
    ("MaxPool", (1, 2, 5, 6, 7), {}, {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [0, 1, 0, 1, 1, 1]}),
    ("AveragePool", (1, 2, 5, 6, 7), {}, {"kernel_shape": [2, 3, 2], "pads": [0, 1, 0, 1, 1, 1]}),
    ("LpPool", (1, 2, 6, 6), {}, {"kernel_shape": [2, 2], "p": 3}),
    ("Conv", (1, 2, 5, 6, 7), {"w": np.ones((3, 2, 2, 3, 3), np.float32)}, {"pads": [0, 1, 1, 1, 1, 1]}),
    ("Gather", (3, 4), {"i": np.array([[2, 0], [-1, 2]])}, {"axis": 1}),
    ("ScatterND", (4, 3), {"i": np.array([[1], [3]]), "u": np.ones((2, 3), np.float32)}, {}),
    ("CumSum", (3, 4), {"axis": np.array(1)}, {"reverse": 1}),
    ("CumSum", (2, 9000, 2), {"axis": np.array(1)}, {}),
    ("CumSum", (2, 300), {"axis": np.array(1)}, {"reverse": 1, "exclusive": 1}),
    ("Trilu", (2, 4, 5), {"k": np.array(1)}, {"upper": 0}),
    ("Pad", (3, 5), {"p": np.array([1, 2, 0, 3])}, {"mode": "reflect"}),
    ("Pad", (3, 5), {"p": np.array([1, -2, 0, 3])}, {"mode": "constant"}),
    ("Slice", (6,), {"s": np.array([5]), "e": np.array([-7]), "a": np.array([0]), "j": np.array([-2])}, {}),
    ("Tile", (2, 3), {"n": np.array([2, 3])}, {}),
    ("LRN", (1, 5, 3, 3), {}, {"size": 3}),
    ("Sin", (3, 4), {}, {}),
]


@pytest.mark.parametrize(("op_type", "shape", "weights", "attributes"), SINGLE)
def test_structured_operators_match_onnxruntime(
    op_type: str,
    shape: tuple[int, ...],
    weights: Weights,
    attributes: dict[str, Any],
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    node = helper.make_node(op_type, ["x", *weights], ["y"], **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": shape}, weights=weights))


def test_quantized_round_trip(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=0),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=0),
    ]
    weights: Weights = {"s": np.array([0.25, 0.5], np.float32), "z": np.array([3, -2], np.int8)}
    agrees_with_onnxruntime(model_of(nodes, {"x": (2, 6)}, weights=weights))
