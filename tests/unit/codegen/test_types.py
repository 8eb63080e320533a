"""Every element type computes what NumPy does: wrap-around, division without traps, half-width floats rounded once."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.dtype import epsilon, is_float
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

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
HALVES = ["float16", "bfloat16"]
PLAIN = Target("llvm -mcpu=x86-64-v3")
"""A CPU without instructions for bfloat16 or for dot products."""


def run(inputs: list[Tensor], output: Tensor, values: list[np.ndarray], vector: bool, target: Target) -> np.ndarray:
    dag = ComputeDAG([*inputs, output])
    stage = dag.id_of(output)
    steps: tuple[Step, ...] = (Annotate(stage, len(output.shape) - 1, Annotation.VECTORIZE),) if vector else ()
    width = 32 if target == PLAIN else 64
    artifact = build_kernel(SearchTask("t", dag, target, HardwareParams(1, width)), steps, "kernel")
    return fenced(artifact, values)


def check(inputs: list[Tensor], output: Tensor, values: list[np.ndarray], ulps: float = 0.0) -> None:
    """The scalar and the vector program, here and without the newest instructions, equal the oracle; floats may differ
    by `ulps` roundings of the result.
    """
    with np.errstate(all="ignore"):
        expected = evaluate([output], dict(zip(inputs, values, strict=True)))[0]
    for target in (Target.host(), PLAIN):
        for vector in (False, True):
            got = run(inputs, output, values, vector, target)
            if ulps == 0.0:
                np.testing.assert_array_equal(got.astype("float64"), expected.astype("float64"), f"{target} {vector}")
                continue
            near = ulps * epsilon(output.dtype)
            np.testing.assert_allclose(got.astype("float64"), expected.astype("float64"), rtol=near, atol=near * 1e-3)


def extremes(dtype: str) -> np.ndarray:
    """The ends of an integer type, the middle, and random numbers of its whole range."""
    info = np.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7]
    random = np.random.default_rng(3).integers(info.min, info.max, 45, dtype, endpoint=True)
    return np.concatenate([np.array(ends, dtype), random])


def halves(dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-3, 3, 53).astype(dtype)


OPERATORS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fused": lambda a, b: a * b + a,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "max": te.maximum,
    "min": te.minimum,
}


@pytest.mark.parametrize("dtype", long_except(["int8", "uint8", "int64"], INTEGERS))
def test_integers_wrap_around_and_divide_by_anything(dtype: str) -> None:
    values = extremes(dtype)
    first, second = np.repeat(values, len(values)), np.tile(values, len(values))
    a, b = te.placeholder(first.shape, dtype, "a"), te.placeholder(first.shape, dtype, "b")
    for function in OPERATORS.values():
        check([a, b], te.compute(first.shape, lambda i, f=function: f(a[i], b[i]), "c"), [first, second])


@pytest.mark.parametrize("divisor", [-7, -1, 1, 3])
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_division_by_a_literal(dtype: str, divisor: int) -> None:
    values = extremes(dtype)
    a = te.placeholder(values.shape, dtype, "a")
    for name in ("div", "floordiv", "floormod"):
        output = te.compute(values.shape, lambda i, f=OPERATORS[name]: f(a[i], te.const(divisor, dtype)), "c")
        check([a], output, [values])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_sums_and_products_of_integers_wrap_around(dtype: str) -> None:
    values = np.stack([np.roll(extremes(dtype), n) for n in range(9)])
    a, k = te.placeholder(values.shape, dtype, "a"), te.reduce_axis(len(values), "k")
    for combine in (te.sum, te.prod, te.max, te.min):
        check([a], te.compute(values.shape[1:], lambda j, f=combine: f(a[k, j], k), "c"), [values])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {"floordiv", "floormod"}))
def test_arithmetic_of_halves_is_rounded_once_an_operation(name: str, dtype: str) -> None:
    values = [halves(dtype, 0), halves(dtype, 1)]
    a, b = te.placeholder((53,), dtype, "a"), te.placeholder((53,), dtype, "b")
    check([a, b], te.compute((53,), lambda i: OPERATORS[name](a[i], b[i]), "c"), values)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "floor", "ceil", "round", "abs"]
)
def test_functions_of_halves_are_those_of_float32_rounded(name: str, dtype: str) -> None:
    values = halves(dtype, 0)
    if name in ("log", "sqrt", "rsqrt"):
        values = np.abs(values) + halves(dtype, 9) ** 2
    a = te.placeholder((53,), dtype, "a")
    check([a], te.compute((53,), lambda i: getattr(te, name)(a[i]), "c"), [values], ulps=1.0)


def test_bfloat16_rounds_to_the_nearest_even_and_keeps_nan_infinity_and_subnormals() -> None:
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00018000, 0x80000001, 0], "uint32"
    )
    values = bits.view("float32")
    a = te.placeholder(values.shape, "float32", "a")
    check([a], te.compute(values.shape, lambda i: te.cast("bfloat16", a[i]), "c"), [values])
    nan = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF], "uint32").view("float32")
    b = te.placeholder(nan.shape, "float32", "b")
    for vector in (False, True):
        output = te.compute(nan.shape, lambda i: te.cast("bfloat16", b[i]), "c")
        assert np.isnan(run([b], output, [nan], vector, Target.host()).astype("float32")).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_becomes_a_float32_and_comes_back(dtype: str) -> None:
    values = np.arange(1 << 16, dtype="uint16").view(dtype)
    values = values[~np.isnan(values.astype("float32"))]
    a = te.placeholder(values.shape, dtype, "a")
    wide = te.compute(values.shape, lambda i: te.cast("float32", a[i]), "wide")
    check([a], wide, [values])
    back = te.compute(values.shape, lambda i: te.cast(dtype, te.cast("float32", a[i]) * te.const(1.0)), "back")
    check([a], back, [values])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("other", ["int8", "uint8", "int32", "int64", "float32", "float64", "bool", *HALVES])
def test_casts_of_halves(dtype: str, other: str) -> None:
    values = halves(dtype, 0) * 20
    if other == "uint8":
        values = np.abs(values)
    a = te.placeholder((53,), dtype, "a")
    there = te.compute((53,), lambda i: te.cast(other, a[i]), "there")
    check([a], there, [values])
    with np.errstate(all="ignore"):
        whole = values.astype("float32").astype(other)
    b = te.placeholder((53,), other, "b")
    check([b], te.compute((53,), lambda i: te.cast(dtype, b[i]), "back"), [whole])


def test_float64_to_float16_rounds_once() -> None:
    # 1 + 2**-11 is halfway between two float16; a little more or less of it is lost when it passes through float32.
    around = [1 + 2.0**-11 + delta for delta in (0.0, 2.0**-40, -(2.0**-40))]
    edges = [65519.999, 65520.0, 1e300, -1e300, np.inf, 2.0**-25, 1e-320, 0.1]
    values = np.array([*around, *(-x for x in around), *edges])
    a = te.placeholder(values.shape, "float64", "a")
    check([a], te.compute(values.shape, lambda i: te.cast("float16", a[i]), "c"), [values])


@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16"])
def test_a_float_too_large_for_a_narrow_integer_keeps_its_lowest_bits(target: str) -> None:
    values = np.array([300.7, -300.2, 70000.0, -1.0, 255.9, 128.0, 1e6, -129.0], "float32")
    a = te.placeholder(values.shape, "float32", "a")
    expected = values.astype("int32").astype(target)
    output = te.compute(values.shape, lambda i: te.cast(target, a[i]), "c")
    for vector in (False, True):
        np.testing.assert_array_equal(run([a], output, [values], vector, Target.host()), expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_comparisons_choices_and_extremes_of_halves(dtype: str) -> None:
    values = [halves(dtype, 0), halves(dtype, 1)]
    values[1][::5] = values[0][::5]
    a, b = te.placeholder((53,), dtype, "a"), te.placeholder((53,), dtype, "b")
    functions: list[Callable[[Expr], Expr]] = [
        lambda i: a[i] < b[i],
        lambda i: te.equal(a[i], b[i]),
        lambda i: te.not_equal(a[i], b[i]),
        lambda i: te.if_then_else(a[i] <= b[i], a[i], b[i] * 2.0),
        lambda i: te.if_then_else(i < 30, a[i], 1.5),
        lambda i: te.isnan(a[i]),
    ]
    for function in functions:
        check([a, b], te.compute((53,), function, "c"), values)


@pytest.mark.parametrize("dtype", HALVES)
def test_types_meet_halves(dtype: str) -> None:
    for other, meets in (("int8", dtype), ("float32", "float32"), ("float64", "float64"), ("bool", dtype)):
        a, b = te.placeholder((53,), dtype, "a"), te.placeholder((53,), other, "b")
        output = te.compute((53,), lambda i, a=a, b=b: a[i] * b[i], "c")
        assert output.dtype == meets
        whole = np.random.default_rng(5).integers(0, 2, 53).astype(other)
        check([a, b], output, [halves(dtype, 0), whole])
    assert is_float((te.placeholder((1,), "bfloat16")[0] + te.placeholder((1,), "float16")[0]).dtype)
