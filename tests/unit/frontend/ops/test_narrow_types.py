"""Quantization to and from types of a byte or less: by tensor, axis and block, as ONNX's reference computes it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import retune
from retune.compiler.core.dtype import NARROW, NARROW_FLOATS, NARROW_INTEGERS, finite_limit
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from tests.support.tiers import long_except

Array = np.ndarray[Any, Any]
STORED = (*NARROW_INTEGERS, "int16", "uint16", "int8", "uint8", *(t for t in NARROW_FLOATS if t != "float8_e8m0fnu"))


def model_of(op: str, x: Array, weights: dict[str, Array], dtype: str, **attributes: Any) -> onnx.ModelProto:
    """One node on the input `x` and constants."""
    node = helper.make_node(op, ["x", *weights], ["y"], **attributes)
    x_type, y_type = (helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in (x.dtype, dtype))
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info("x", x_type, x.shape)],
        [helper.make_tensor_value_info("y", y_type, x.shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


def check(model: onnx.ModelProto, x: Array, path: Path) -> None:
    """The compiled network, the same after it is saved and loaded, and the interpreter give what the reference does."""
    with np.errstate(all="ignore"):
        outputs: Any = ReferenceEvaluator(model).run(None, {"x": x})
        (folded,) = evaluate(load_model(model), {"x": x})
    network, expected = retune.compile(model), outputs[0]
    network.save(path)
    for got in map(np.asarray, (network(x), retune.load(path)(x), folded)):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got.astype("float64"), expected.astype("float64"))


def _layout(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Shapes of a tensor and its scale, and the attributes that join them."""
    shape = tuple(int(n) for n in rng.integers(1, 9, 3))
    axis, form = int(rng.integers(3)), int(rng.integers(3))
    if form == 0:
        return shape, (), {}
    if form == 1:
        return shape, (shape[axis],), {"axis": axis - 3 * int(rng.integers(2))}
    block = int(rng.integers(1, 4))
    shape = (*shape[:axis], shape[axis] * block, *shape[axis + 1 :])
    return shape, (*shape[:axis], shape[axis] // block, *shape[axis + 1 :]), {"axis": axis, "block_size": block}


def _zero(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    low, high = (finite_limit(dtype, is_least=is_least) for is_least in (True, False))
    if dtype in NARROW_FLOATS:
        return np.zeros(shape, dtype)
    return rng.integers(int(low) // 2, int(high) // 2 + 1, shape).astype("int32").astype(dtype)


@pytest.mark.parametrize("dtype", long_except(("int4", "uint2", "uint16", "float8_e4m3fn", "float4_e2m1fn"), STORED))
def test_quantization_by_tensor_axis_and_block_is_as_the_reference_computes_it(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(STORED.index(dtype))
    for _ in range(4):
        shape, scales, attributes = _layout(rng)
        scale = (2.0 ** rng.integers(-4, 3, scales)).astype("float32")
        weights = {"scale": scale, "zero": _zero(rng, dtype, scales)}
        x = (rng.standard_normal(shape) * 9).astype("float32")
        check(model_of("QuantizeLinear", x, weights, dtype, **attributes), x, tmp_path / "q.retune")
        codes = rng.integers(-60, 60, shape).astype("float32" if dtype in NARROW_FLOATS else "int32").astype(dtype)
        check(model_of("DequantizeLinear", codes, weights, "float32", **attributes), codes, tmp_path / "d.retune")


@pytest.mark.parametrize("dtype", [t for t in NARROW_FLOATS if t.startswith("float8_e4m3") or "e5m2" in t])
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_saturate_as_told(dtype: str, saturate: int, tmp_path: Path) -> None:
    x = np.array([1e-9, 0.3, 239, 248, 300, 449, 70000, 1e30, np.inf, -np.inf, np.nan, -500], "float32")
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    check(model_of("Cast", x, {}, dtype, to=to, saturate=saturate), x, tmp_path / "c.retune")


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two_round_as_told(mode: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 500, dtype=np.uint64).astype("uint32").view("float32")
    x = np.concatenate([bits, [0, 1.5, 3, 2**-127, 2**-126 * 0.75, 3e38, np.inf, np.nan]]).astype("float32")
    for saturate in (0, 1):
        model = model_of("Cast", x, {}, "float8_e8m0fnu", to=TensorProto.FLOAT8E8M0, round_mode=mode, saturate=saturate)
        check(model, x, tmp_path / "c.retune")


@pytest.mark.parametrize("dtype", NARROW)
def test_constants_are_moved_and_kept(dtype: str, tmp_path: Path) -> None:
    """Constants, inputs and outputs of every type, an odd number of elements each."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    x, weight = (rng.integers(0, 4, (3, 7)).astype("uint8").view(dtype) for _ in range(2))
    nodes = [
        helper.make_node("Concat", ["x", "w"], ["both"], axis=0),
        helper.make_node("Transpose", ["both"], ["y"], perm=[1, 0]),
        helper.make_node("Cast", ["both"], ["z"], to=TensorProto.FLOAT16),
    ]
    values = [helper.make_tensor_value_info("y", kind, (7, 6)), helper.make_tensor_value_info("z", 10, (6, 7))]
    inputs = [helper.make_tensor_value_info("x", kind, (3, 7))]
    graph = helper.make_graph(nodes, "moves", inputs, values, [numpy_helper.from_array(weight, "w")])
    network = retune.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]))
    network.save(tmp_path / "n.retune")
    both = np.concatenate([x, weight])
    for result in (network(x), retune.load(tmp_path / "n.retune")(x)):
        assert result[0].dtype == dtype
        np.testing.assert_array_equal(result[0].view("uint8"), both.T.view("uint8"))
        np.testing.assert_array_equal(result[1], both.astype("float16"))
