"""Every element-wise converter computes what ONNX Runtime computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import retune

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Any]

ANY = ["Abs", "Ceil", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Neg", "Relu"]
ANY += ["Reciprocal", "Round", "Selu", "Sigmoid", "Softplus", "Tanh", "Identity", "Dropout"]


@pytest.mark.parametrize("op_type", ANY)
def test_unary_operators_match_onnxruntime(op_type: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    agrees_with_onnxruntime(model_of([helper.make_node(op_type, ["x"], ["y"])], {"x": (2, 3, 5)}, opset=18))


@pytest.mark.parametrize("op_type", ["Softplus", "Mish"])
def test_small_results_of_softplus_keep_their_digits(op_type: str, model_of: ModelOf) -> None:
    x = np.concatenate([np.linspace(-80, 20, 2001), np.linspace(-16, -8, 1001)]).astype("float32")
    network = retune.compile(model_of([helper.make_node(op_type, ["x"], ["y"])], {"x": x.shape}, opset=18), threads=1)
    exact = np.logaddexp(x.astype("float64"), 0)
    exact = exact if op_type == "Softplus" else x * np.tanh(exact)
    np.testing.assert_allclose(np.asarray(network(x=x)), exact, rtol=5e-7)


@pytest.mark.parametrize("op_type", ["Sqrt", "Log"])
def test_unary_of_positive_numbers(op_type: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node(op_type, ["a"], ["y"])]
    agrees_with_onnxruntime(model_of(nodes, {"x": (4, 5)}))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "PRelu"])
def test_binary_operators_broadcast_as_onnxruntime(
    op_type: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    node = helper.make_node(op_type, ["x", "z"], ["y"])
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3, 4), "z": (3, 1)}))


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_variadic_operators_match_onnxruntime(op_type: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node(op_type, ["a", "b", "c"], ["y"])
    agrees_with_onnxruntime(model_of([node], {"a": (4,), "b": (3, 1), "c": (1,)}))


@pytest.mark.parametrize("exponent", [1.0, 2.0, 0.5, 3.0])
def test_pow_matches_onnxruntime(exponent: float, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Pow", ["a", "e"], ["y"])]
    agrees_with_onnxruntime(model_of(nodes, {"x": (4, 5)}, weights={"e": np.float32(exponent)}))


def test_pow_of_an_integer_exponent(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    agrees_with_onnxruntime(model_of([node], {"x": (4, 3)}, weights={"e": np.asarray([1, 2, 3])}))


def test_the_root_of_an_integer(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    whole = helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT32)
    nodes = [whole, helper.make_node("Abs", ["i"], ["a"]), helper.make_node("Pow", ["a", "e"], ["p"])]
    nodes.append(helper.make_node("Cast", ["p"], ["y"], to=onnx.TensorProto.FLOAT))
    agrees_with_onnxruntime(model_of(nodes, {"x": (4, 9)}, weights={"e": np.float32(0.5)}))


@pytest.mark.parametrize("bounds", [["low", "high"], ["low"], ["", "high"], [], ["zero"]])
def test_clip_with_missing_bounds_matches_onnxruntime(
    bounds: list[str], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    weights = {"low": np.float32(-0.5), "high": np.float32(0.75), "zero": np.float32(0)}
    agrees_with_onnxruntime(model_of([helper.make_node("Clip", ["x", *bounds], ["y"])], {"x": (3, 7)}, weights=weights))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_matches_onnxruntime(approximate: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], approximate=approximate)
    agrees_with_onnxruntime(model_of([node], {"x": (3, 7)}, opset=20))


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_numbers_lose_digits_as_halves(kind: int, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=kind),
        helper.make_node("Cast", ["h"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    agrees_with_onnxruntime(model_of(nodes, {"x": (3, 7)}))


def test_cast_and_cast_like_match_onnxruntime(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT32),
        helper.make_node("CastLike", ["i", "x"], ["y"]),
    ]
    agrees_with_onnxruntime(model_of(nodes, {"x": (3, 7)}))
