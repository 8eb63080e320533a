"""Convolutions, pools, products and batch norm compute what ONNX Runtime computes, before and after every pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Any]

RNG = np.random.default_rng(3)
_START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _draw_from_the_start() -> None:
    """The same numbers for a test, whichever ran before it."""
    RNG.bit_generator.state = _START


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape, dtype=np.float32)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 8, 9), (4, 3, 3, 3), {}),
    ((2, 3, 8, 9), (4, 3, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 4, 9, 9), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 4, 9, 9), (8, 1, 3, 3), {"group": 4}),
    ((1, 3, 7, 8), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 7, 8), (4, 3, 2, 2), {"auto_pad": "SAME_LOWER"}),
    ((1, 3, 7, 8), (4, 3, 3, 3), {"auto_pad": "VALID"}),
    ((1, 3, 11), (4, 3, 3), {"pads": [1, 2], "strides": [2], "dilations": [2]}),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("shape", "weight", "attributes"), CONVOLUTIONS)
def test_convolution_matches_onnxruntime(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: dict[str, Any],
    bias: bool,
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    weights = {"w": floats(*weight), **({"b": floats(weight[0])} if bias else {})}
    node = helper.make_node("Conv", ["x", *weights], ["y"], **attributes)
    graph = agrees_with_onnxruntime(model_of([node], {"x": shape}, weights=weights))
    (convolution,) = (node for node in graph.nodes if node.op == "conv2d")
    assert convolution.text("layout") == "NHWC"


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((2, 4, 5, 3, 4, 3), (4, 4, 2, 2, 2, 2), {"pads": [1, 0, 1, 0, 0, 1, 1, 1], "strides": [2, 1, 1, 2]}),
        ((1, 4, 4, 3, 3, 3), (4, 2, 2, 2, 2, 2), {"group": 2, "dilations": [2, 1, 1, 1]}),
        ((1, 2, 2, 2, 2, 2, 2), (2, 2, 2, 2, 2, 2, 1), {}),
    ],
)
def test_convolutions_of_four_and_five_dimensions_match_onnxruntime(
    op: str,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: dict[str, Any],
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    channels = weight[0] if op == "Conv" else weight[1] * attributes.get("group", 1)
    weights = {"w": floats(*weight), "b": floats(channels)}
    node = helper.make_node(op, ["x", "w", "b"], ["y"], **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": shape}, weights=weights))


def test_convolution_with_computed_weights_matches_onnxruntime(
    model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=4)
    agrees_with_onnxruntime(model_of([node], {"x": (1, 4, 6, 6), "w": (4, 1, 3, 3)}))


POOLS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("MaxPool", (1, 3, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", (1, 3, 9, 10), {"kernel_shape": [2, 3], "dilations": [2, 2]}),
    ("MaxPool", (1, 3, 10, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("MaxPool", (1, 2, 6, 6), {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1}),
    ("MaxPool", (1, 3, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    ("AveragePool", (1, 3, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", (1, 3, 9, 9), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("AveragePool", (1, 3, 10, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", (1, 3, 9, 9), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("GlobalAveragePool", (2, 3, 5, 4), {}),
    ("GlobalMaxPool", (2, 3, 5, 4), {}),
]


@pytest.mark.parametrize(("op_type", "shape", "attributes"), POOLS)
def test_pools_match_onnxruntime(
    op_type: str, shape: tuple[int, ...], attributes: dict[str, Any], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    agrees_with_onnxruntime(model_of([helper.make_node(op_type, ["x"], ["y"], **attributes)], {"x": shape}))


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, 2.0)])
def test_gemm_matches_onnxruntime(
    transposed: tuple[int, int], factors: tuple[float, float], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    a, b = ((4, 3) if transposed[0] else (3, 4)), ((5, 4) if transposed[1] else (4, 5))
    node = helper.make_node(
        "Gemm", ["x", "w", "c"], ["y"], transA=transposed[0], transB=transposed[1], alpha=factors[0], beta=factors[1]
    )
    graph = agrees_with_onnxruntime(model_of([node], {"x": a}, weights={"w": floats(*b), "c": floats(5)}))
    assert sum(node.op == "transpose" for node in graph.nodes) == transposed[0]


MATMULS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 2, 3, 4), (2, 1, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((4,), (4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (4,)),
]


@pytest.mark.parametrize(("a", "b"), MATMULS)
def test_matmul_broadcasts_as_onnxruntime(
    a: tuple[int, ...], b: tuple[int, ...], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    agrees_with_onnxruntime(model_of([helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": a, "b": b}))


def test_batch_norm_joins_the_convolution(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    weights = {"w": floats(4, 3, 3, 3), "b": floats(4), "s": floats(4), "t": floats(4), "m": floats(4)}
    weights["v"] = np.abs(floats(4)) + 0.5
    graph = agrees_with_onnxruntime(model_of(nodes, {"x": (1, 3, 6, 6)}, weights=weights))
    assert [node.op for node in graph.nodes] == ["transpose", "conv2d", "add", "relu", "transpose"]


def test_batch_norm_alone_becomes_a_product_and_a_sum(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "t", "m", "v"], ["y"], epsilon=0.01)
    weights = {"s": floats(4), "t": floats(4), "m": floats(4), "v": np.abs(floats(4)) + 0.5}
    graph = agrees_with_onnxruntime(model_of([node], {"x": (2, 4, 3, 3)}, weights=weights))
    assert [node.op for node in graph.nodes] == ["mul", "add"]


def test_batch_norm_of_computed_statistics(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("Abs", ["v"], ["a"]),
        helper.make_node("BatchNormalization", ["x", "s", "t", "m", "a"], ["y"]),
    ]
    inputs = {"x": (2, 4, 3, 3), "s": (4,), "t": (4,), "m": (4,), "v": (4,)}
    agrees_with_onnxruntime(model_of(nodes, inputs))
