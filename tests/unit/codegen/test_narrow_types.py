"""Types below a byte and floats of a byte: conversions of every code are those of ml_dtypes, operations round once.

Arrays lie between fences and have an odd number of elements: nothing is read or written beyond them.
"""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.math import narrow_floats
from retune.compiler.core.dtype import NARROW, is_float, item_bits
from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from tests.support.fenced import fenced
from tests.support.tiers import long_except

WIDE = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
WAYS = ((Target.host(), True), (Target.host(), False), (Target("llvm -mcpu=x86-64-v2"), True))
"""Targets, and whether the loop is one over lanes."""
QUICK = ("int4", "float8_e4m3fn", "float8_e5m2fnuz")


def codes(dtype: str) -> np.ndarray:
    """Every value of a type, and the first ones again: an odd number."""
    return (np.arange(277) % (1 << item_bits(dtype))).astype("uint8").view(dtype)


def run(inputs: list[Tensor], output: Tensor, values: list[np.ndarray], target: Target, vector: bool) -> np.ndarray:
    dag = ComputeDAG([*inputs, output])
    steps: tuple[Step, ...] = (Annotate(dag.id_of(output), 0, Annotation.VECTORIZE),) if vector else ()
    return fenced(build_kernel(SearchTask("t", dag, target, HardwareParams(1, 64)), steps, "kernel"), values)


def assert_same(got: np.ndarray, expected: np.ndarray, label: str) -> None:
    """Equal values with equal signs; all NaNs are one."""
    assert got.dtype == expected.dtype
    with np.errstate(invalid="ignore"):  # a signaling NaN
        left, right = got.astype("float64"), expected.astype("float64")
    np.testing.assert_array_equal(left, right, label)
    numbers = ~np.isnan(right)
    np.testing.assert_array_equal(np.signbit(left[numbers]), np.signbit(right[numbers]), label)


def check(function: Callable[..., Expr], *values: np.ndarray) -> None:
    """The scalar and the vector program of an elementwise function equal the definition on every way."""
    (n,) = values[0].shape
    inputs = [te.placeholder((n,), value.dtype.name, name=f"x{i}") for i, value in enumerate(values)]
    output = te.compute((n,), lambda i: function(*(tensor[i] for tensor in inputs)), "y")
    (expected,) = evaluate([output], dict(zip(inputs, values, strict=True)))
    for target, vector in WAYS:
        assert_same(run(inputs, output, list(values), target, vector), expected, f"{target} {vector}")


def _convertible(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values whose conversion NumPy defines: of floats to integers those in range."""
    if is_float(dtype) or dtype == "bool" or not is_float(values.dtype.name):
        return values
    least = 0 if dtype.startswith("uint") else -(2**31) + 1
    numbers = values.astype("float64")
    return values[(numbers >= least) & (numbers < 2**31)]


@pytest.mark.parametrize("source", long_except(QUICK, NARROW))
def test_every_code_converts_to_every_type(source: str) -> None:
    for dtype in (*WIDE, *NARROW):
        values = _convertible(codes(source), dtype)
        check(lambda x, dtype=dtype: te.cast(dtype, x), values)


def _samples(dtype: str) -> np.ndarray:
    """Random bits, numbers in range, ties, and the ends of every format."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 3001, dtype=np.uint64).astype("uint32").view("float32")
    grid = np.concatenate([np.arange(-40, 40.1, 0.125), np.arange(-520, 521, 8), 2.0 ** np.arange(-149, 128)])
    near = [grid, grid * (1 + 2**-12), grid * (1 - 2**-12), grid * 1.5, [0.0, -0.0, np.inf, -np.inf, np.nan]]
    with np.errstate(all="ignore"):
        return np.concatenate([bits, rng.standard_normal(2000) * 10, *near]).astype("float32").astype(dtype)


@pytest.mark.parametrize("dtype", long_except(QUICK, NARROW))
def test_conversions_round_as_ml_dtypes(dtype: str) -> None:
    for source in WIDE:
        check(lambda x: te.cast(dtype, x), _convertible(_samples(source), dtype))


def test_a_wrong_rounding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = narrow_floats._nearest
    monkeypatch.setattr(narrow_floats, "_nearest", lambda write, bits, shift: exact(write, bits, shift - 1))
    with pytest.raises(AssertionError):
        check(lambda x: te.cast("float8_e5m2", x), _samples("float32"))


@pytest.mark.parametrize("dtype", long_except(QUICK, NARROW))
def test_operations_compute_in_a_wider_type_and_round(dtype: str) -> None:
    values = codes(dtype)
    other = np.random.default_rng(1).permutation(values)
    check(lambda a, b: a + b, values, other)
    check(lambda a, b: te.maximum(a * b, a), values, other)
    check(lambda a, b: te.select(a < b, a, b), values, other)
    check(lambda a, b: te.cast("float32", a) * 0.5 - te.cast("float32", b), values, other)


def test_sums_of_narrow_terms_are_refused() -> None:
    x, k = te.placeholder((37,), "int4", name="x"), te.reduce_axis(37, "k")
    with pytest.raises(DefinitionError, match="sum of int4: cast the terms to int8 or wider"):
        te.sum(x[k], k)
    with pytest.raises(DefinitionError, match="argmax of int4"):
        te.argmax((k, x[k]), k)
    check_sum = te.compute((1,), lambda _: te.sum(te.cast("int32", x[k]), k), "y")
    dag = ComputeDAG([x, check_sum])
    array = codes("int4")[:37]
    for target, _ in WAYS:
        got = fenced(build_kernel(SearchTask("t", dag, target, HardwareParams(1, 64)), (), "k"), [array])
        assert got.item() == array.astype("int32").sum()


def test_bits_join_a_float_and_an_integer_of_its_width() -> None:
    check(lambda x: te.bits("float4_e2m1fn", x), codes("uint4"))
    check(lambda x: te.bits("int4", x), codes("float4_e2m1fn"))
    check(lambda x: te.bits("uint8", x), codes("float8_e4m3fnuz"))
    with pytest.raises(DefinitionError, match="int4 has 4 bits, uint8 8"):
        te.bits("uint8", te.placeholder((4,), "int4", name="x")[0])


def test_literals_are_numbers_of_the_type() -> None:
    assert te.const(0.3, "float8_e4m3fn").value == 0.3125
    with pytest.raises(DefinitionError, match="9 is no int4: that type holds -8 to 7"):
        te.const(9, "int4")
    check(lambda x: te.select(x < 0, te.const(-3, "int4"), x), codes("int4"))
