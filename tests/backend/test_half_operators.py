"""Operators of float16 and bfloat16 whose steps exceed the largest float16 or cancel, though results do neither.

The reference is ONNX Runtime with the same operands in float32, rounded once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import retune

Array = NDArray[Any]
HALVES = {"float16": (np.dtype(np.float16), 2.0**-10), "bfloat16": (np.dtype(ml_dtypes.bfloat16), 2.0**-7)}
"""Each type with the distance from 1 to the next number."""
Operands = Callable[[np.random.Generator], tuple[dict[str, Array], dict[str, Array]]]


CANCELLING = ("Celu", "Elu", "HardSigmoid", "Mish", "Selu", "Softplus", "Softsign")
"""Functions that subtract numbers near 1, or take logarithms of them: halves would keep no digit of a small result."""


def _large(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers of magnitude 240 to 480, whose products all exceed the largest float16."""
    return np.asarray(rng.integers(30, 60, shape) * 8.0 * rng.choice([-1, 1], shape))


def _pairs(rng: np.random.Generator, *shape: int, axis: int) -> Array:
    """Large numbers, each of which comes with both signs along an axis; one small number does not cancel."""
    values = _large(rng, *shape)
    half = shape[axis] // 2
    front = np.moveaxis(values, axis, 0)
    front[half : 2 * half] = -front[:half]
    front[0] += 2
    return values


def _same(rng: np.random.Generator, *shape: int, axis: int) -> Array:
    """Large numbers of which both halves along an axis are the same."""
    values = _large(rng, *shape)
    half = shape[axis] // 2
    front = np.moveaxis(values, axis, 0)
    front[half : 2 * half] = front[:half]
    return values


def _case(op: str, x: Array, *others: Array, weights: int = 0, **attributes: Any) -> Any:
    return op, (x, *others), weights, attributes


def _biased_cases(rng: np.random.Generator) -> Mapping[str, Any]:
    """Sums of four products, most of them beyond float16, which a bias brings back into its range."""
    kernels: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
        "Gemm": ("Gemm", (6, 4), (4, 5), {}),
        "Gemm transposed": ("Gemm", (6, 4), (5, 4), {"transB": 1}),
        "Conv": ("Conv", (1, 4, 6, 6), (5, 4, 1, 1), {}),
        "Conv strided": ("Conv", (1, 1, 6, 6), (5, 1, 2, 2), {"strides": [2, 2]}),
        "Conv of groups": ("Conv", (1, 8, 6, 6), (10, 4, 1, 1), {"group": 2}),
        "Conv depthwise": ("Conv", (1, 5, 6, 6), (5, 1, 2, 2), {"group": 5}),
        "Conv of a line": ("Conv", (1, 2, 9), (5, 2, 2), {}),
        "Conv of a volume": ("Conv", (1, 2, 4, 4, 4), (5, 2, 1, 1, 2), {}),
        "Conv of four dimensions": ("Conv", (1, 2, 3, 3, 3, 3), (5, 2, 2, 1, 1, 1), {}),
        "ConvTranspose": ("ConvTranspose", (1, 4, 5, 5), (4, 5, 1, 1), {}),
        "ConvTranspose strided": ("ConvTranspose", (1, 4, 5, 5), (4, 5, 2, 2), {"strides": [2, 2]}),
        "ConvTranspose dilated": ("ConvTranspose", (1, 4, 5, 5), (4, 5, 1, 1), {"dilations": [2, 2]}),
        "ConvTranspose of a line": ("ConvTranspose", (1, 4, 5), (4, 5, 2), {"strides": [2]}),
        "ConvTranspose of a volume": ("ConvTranspose", (1, 4, 3, 3, 3), (4, 5, 2, 2, 2), {"strides": [2] * 3}),
    }
    cases = {}
    for name, (op, shape, weight, attributes) in kernels.items():
        outputs = weight[1] if op == "ConvTranspose" or name == "Gemm" else weight[0]
        # Numbers of eight bits, whose products and sums are exact in float32.
        x, w = (rng.integers(125, 140, extents).astype(np.float64) for extents in (shape, weight))
        bias = -rng.integers(100, 120, outputs) * 512.0
        cases[f"{name} with a bias"] = _case(op, x, w, bias, weights=2, **attributes)
    return cases


def _cases() -> Mapping[str, Any]:
    rng = np.random.default_rng(0)
    near = rng.standard_normal((2, 8, 6, 6))
    row = _large(rng, 4, 64)
    return {
        "MatMul": _case("MatMul", _pairs(rng, 4, 32, axis=1), _same(rng, 32, 24, axis=0), weights=1),
        "MatMul of a batch": _case("MatMul", _pairs(rng, 2, 4, 32, axis=2), _same(rng, 2, 32, 24, axis=1)),
        "Gemm": _case("Gemm", _pairs(rng, 4, 32, axis=1), _same(rng, 24, 32, axis=1), weights=1, transB=1),
        "Gemm scaled": _case(
            "Gemm", _large(rng, 4, 32), _large(rng, 32, 24), _large(rng, 24), weights=2, alpha=1e-3, beta=100.0
        ),
        "Gemm scaled up": _case("Gemm", 1e-4 * _large(rng, 4, 32), _large(rng, 32, 24), weights=1, alpha=300.0),
        "Conv": _case(
            "Conv", _pairs(rng, 1, 16, 6, 6, axis=1), _same(rng, 24, 16, 3, 3, axis=1), weights=1, pads=[1] * 4
        ),
        "Conv of points": _case("Conv", _pairs(rng, 1, 32, 6, 6, axis=1), _same(rng, 24, 32, 1, 1, axis=1), weights=1),
        "Conv of groups": _case(
            "Conv",
            np.repeat(_pairs(rng, 1, 8, 6, 6, axis=1), 2, axis=0).reshape(1, 16, 6, 6),
            _same(rng, 8, 8, 3, 3, axis=1),
            weights=1,
            group=2,
        ),
        "Conv depthwise": _case(
            "Conv", _same(rng, 1, 8, 6, 6, axis=3), _pairs(rng, 8, 1, 1, 6, axis=3), weights=1, group=8
        ),
        "Conv of a line": _case("Conv", _pairs(rng, 1, 16, 20, axis=1), _same(rng, 8, 16, 3, axis=1), weights=1),
        "Conv of a volume": _case(
            "Conv", _pairs(rng, 1, 16, 4, 4, 4, axis=1), _same(rng, 8, 16, 3, 3, 3, axis=1), weights=1
        ),
        "Conv of four dimensions": _case(
            "Conv", _pairs(rng, 1, 8, 3, 2, 3, 2, axis=1), _same(rng, 4, 8, 2, 2, 2, 2, axis=1), weights=1
        ),
        "ConvTranspose": _case(
            "ConvTranspose",
            _pairs(rng, 1, 16, 5, 5, axis=1),
            _same(rng, 16, 8, 4, 4, axis=0),
            weights=1,
            strides=[2, 2],
            pads=[1] * 4,
        ),
        "ConvTranspose uneven": _case(
            "ConvTranspose",
            _pairs(rng, 1, 16, 5, 5, axis=1),
            _same(rng, 16, 8, 3, 3, axis=0),
            weights=1,
            strides=[2, 2],
            pads=[1] * 4,
        ),
        "ConvTranspose dilated": _case(
            "ConvTranspose",
            _pairs(rng, 1, 16, 5, 5, axis=1),
            _same(rng, 16, 4, 3, 3, axis=0),
            weights=1,
            dilations=[2, 2],
        ),
        **_biased_cases(rng),
        "DeformConv": _case(
            "DeformConv",
            _pairs(rng, 1, 16, 5, 5, axis=1),
            _same(rng, 8, 16, 3, 3, axis=1),
            np.zeros((1, 18, 3, 3)),
            weights=1,
        ),
        "Einsum": _case("Einsum", _pairs(rng, 3, 4, 32, axis=2), _same(rng, 3, 5, 32, axis=2), equation="bik,bjk->bji"),
        "Einsum of three": _case(
            "Einsum", _large(rng, 4, 6), _large(rng, 6, 5), 1e-4 * _large(rng, 5, 3), equation="ij,jk,kl->il"
        ),
        "Einsum with a sum": _case(
            "Einsum", 100 + _large(rng, 4, 512) ** 2 / 2e3, 1e-4 * _large(rng, 5), equation="ij,k->ik"
        ),
        "LpNormalization": _case("LpNormalization", row, axis=1, p=2),
        "LpNormalization of magnitudes": _case("LpNormalization", 40 * row, axis=1, p=1),
        "ReduceL2": _case("ReduceL2", row, np.array([1]), weights=1),
        "ReduceSumSquare": _case("ReduceSumSquare", 60 + near[0, 0], np.array([1]), weights=1),
        "ReduceLogSum": _case("ReduceLogSum", np.abs(40 * row), np.array([1]), weights=1),
        "ReduceLogSumExp": _case("ReduceLogSumExp", np.full((1, 70000), 8.0), np.array([1]), weights=1),
        "LRN": _case("LRN", _large(rng, 1, 8, 4, 4), size=5, alpha=1e-4),
        "LayerNormalization": _case(
            "LayerNormalization", row, 1 + near[0, 0, 0, 0] + np.zeros(64), np.ones(64), weights=2
        ),
        "LayerNormalization scaled": _case(
            "LayerNormalization", row[:1], np.full(64, 6e4), -3e4 * np.sign(row[0]), weights=2
        ),
        "InstanceNormalization": _case(
            "InstanceNormalization", _large(rng, 2, 8, 6, 6), near[0, :, 0, 0], near[0, :, 1, 0], weights=2
        ),
        "GroupNormalization": _case(
            "GroupNormalization", _large(rng, 2, 8, 6, 6), near[0, :, 0, 0], near[0, :, 1, 0], weights=2, num_groups=2
        ),
        "MeanVarianceNormalization": _case("MeanVarianceNormalization", _large(rng, 2, 8, 6, 6)),
        "BatchNormalization": _case(
            "BatchNormalization",
            4e4 + 100 * near,
            np.full(8, 3.0),
            np.zeros(8),
            np.full(8, 3e4),
            np.full(8, 2.0),
            weights=4,
        ),
        "Softmax": _case("Softmax", np.zeros((1, 70000)), axis=1),
        "LogSoftmax": _case("LogSoftmax", np.zeros((1, 70000)), axis=1),
        "LpPool": _case("LpPool", _large(rng, 1, 2, 6, 6), kernel_shape=[3, 3]),
        "GlobalLpPool": _case("GlobalLpPool", _large(rng, 1, 2, 6, 6)),
        "AveragePool": _case("AveragePool", 100 * _large(rng, 1, 2, 6, 6), kernel_shape=[3, 3]),
        "AveragePool dilated": _case(
            "AveragePool", 100 * np.abs(_large(rng, 1, 2, 6, 6)), kernel_shape=[3, 3], dilations=[2, 2]
        ),
        "Mean": _case("Mean", np.full(5, 6e4), np.full(5, 5e4)),
        "Sum": _case("Sum", np.full(5, 6e4), np.full(5, 5e4), np.full(5, -6e4)),
        "Det": _case("Det", np.array([[300.0, 296.0], [304.0, 300.0]])),
        "Resize": _case(
            "Resize",
            100 * np.abs(_large(rng, 1, 1, 32, 32)),
            np.zeros(0),
            np.zeros(0),
            np.array([1, 1, 4, 4]),
            weights=3,
            mode="linear",
            antialias=1,
        ),
        "Resize by cubics": _case(
            "Resize",
            100 * np.abs(_large(rng, 1, 1, 9, 9)),
            np.zeros(0),
            np.zeros(0),
            np.array([1, 1, 23, 19]),
            weights=3,
            mode="cubic",
        ),
    } | {op: _case(op, -np.linspace(0.01, 6, 50)) for op in CANCELLING}


CASES = _cases()
SHAPES = {"Gemm": (6, 5), "Conv": (1, 5, 6, 6)}
"""Of the results of the cases with a bias."""
_LISTS = {"ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"}


def _model(case: Any, arrays: tuple[Array, ...], kind: int, shape: tuple[int, ...] | None = None) -> Any:
    """The model whose last operands are constants, as the case says; floats are of ONNX's type `kind`."""
    op, _, weights, attributes = case
    inputs, constants, names = [], [], []
    for place, array in enumerate(arrays):
        name, fixed = f"x{place}", place >= len(arrays) - weights
        is_float = array.dtype.kind == "f" and (op != "Resize" or place == 0)
        names.append(name if array.size else "")
        if not array.size:
            continue
        dtype = helper.tensor_dtype_to_np_dtype(kind) if is_float else np.dtype(np.int64)
        if fixed:
            constants.append(numpy_helper.from_array(array.astype(dtype), name))
        else:
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), array.shape))
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], op, inputs, [helper.make_tensor_value_info("y", kind, shape)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_halves_are_multiplied_and_summed_in_float32(name: str, dtype: str) -> None:
    _, arrays, weights, _ = CASES[name]
    half, step = HALVES[dtype]
    arrays = tuple(array.astype(half).astype("float64") if array.dtype.kind == "f" else array for array in arrays)
    wide = _model(CASES[name], arrays, TensorProto.FLOAT)
    fed = {f"x{place}": array for place, array in enumerate(arrays[: len(arrays) - weights])}
    session = onnxruntime.InferenceSession(wide.SerializeToString(), providers=["CPUExecutionProvider"])
    (exact,) = session.run(None, {key: array.astype("float32") for key, array in fed.items()})
    right = np.asarray(exact).astype(half)
    assert np.isfinite(right.astype("float64")).all(), "the result must fit into the type"
    model = _model(CASES[name], arrays, helper.np_dtype_to_tensor_dtype(half), exact.shape)
    network = retune.compile(model, threads=1)
    found = np.asarray(network(**{key: array.astype(half) for key, array in fed.items()}))
    assert found.dtype == half
    # Rounded once, each to nearest; a sum that float32 rounds may lie on the other side of the middle.
    scale = np.maximum(np.abs(exact), np.finfo(np.float16).tiny if dtype == "float16" else 1e-30)
    np.testing.assert_array_less(np.abs(found.astype("float64") - exact) / scale, 1.02 * step / 2)
    if name.endswith("with a bias"):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_bias_of_halves_is_added_in_the_kernel_of_the_product(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(HALVES[dtype][0])
    for name in ("Gemm with a bias", "Conv with a bias"):
        op, arrays, weights, attributes = CASES[name]
        without = (op, arrays[:-1], weights - 1, attributes)
        plain, biased = (
            retune.compile(_model(case, case[1], kind, shape), threads=1)
            for case, shape in ((without, SHAPES[op]), (CASES[name], SHAPES[op]))
        )
        assert len(plain.report().kernels) == len(biased.report().kernels)


@pytest.mark.parametrize("dtype", HALVES)
def test_what_follows_a_product_is_rounded_with_it(dtype: str) -> None:
    half, step = HALVES[dtype]
    kind = helper.np_dtype_to_tensor_dtype(half)
    rng = np.random.default_rng(1)
    # The scaled product is near 1000 and the bias near -1000: rounded before, the sum would have two digits at most.
    x, w = (rng.integers(20, 36, shape).astype(half) for shape in ((8, 16), (16, 24)))
    scale = np.asarray(0.078125, half)
    bias = (-np.float64(scale) * 12500 + rng.standard_normal(24)).astype(half)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["gate"]),
        helper.make_node("Mul", ["sum", "gate"], ["y"]),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in (("w", w), ("scale", scale), ("bias", bias))]
    ends = [helper.make_tensor_value_info("x", kind, x.shape), helper.make_tensor_value_info("y", kind, (8, 24))]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], constants)
    network = retune.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    sums = x.astype("float64") @ w.astype("float64") * np.float64(scale) + bias.astype("float64")
    exact = sums / (1 + np.exp(-sums))
    found = np.asarray(network(x=x)).astype("float64")
    np.testing.assert_array_less(np.abs(found - exact), 1.02 * step / 2 * np.abs(exact) + 1e-4)
