"""Every expression compiles to what NumPy computes: operators, types, lazy choices, strided and turned reads."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeAt, Reorder, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from tests.support.fenced import fenced

LENGTH = 53
"""Three full vectors of float32 and a remainder of five, so that every width is used."""


def run(inputs: list[Tensor], output: Tensor, values: list[np.ndarray], steps: tuple[Step, ...]) -> np.ndarray:
    dag = ComputeDAG([*inputs, output])
    artifact = build_kernel(SearchTask("t", dag, Target.host(), HardwareParams(1)), steps, "kernel")
    return fenced(artifact, values)


def check(inputs: list[Tensor], output: Tensor, values: list[np.ndarray], rtol: float = 1e-6) -> None:
    """The scalar program and the vector program both equal the oracle."""
    expected = evaluate([output], dict(zip(inputs, values, strict=True)))[0]
    last = len(output.shape) - 1
    stage = ComputeDAG([*inputs, output]).id_of(output)
    for steps in ((), (Annotate(stage, last, Annotation.VECTORIZE),)):
        np.testing.assert_allclose(run(inputs, output, values, steps), expected, rtol=rtol, atol=1e-6)


def sample(dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, LENGTH).astype(bool)
    if dtype.startswith("float"):
        return rng.uniform(-3, 3, LENGTH).astype(dtype)
    low = 0 if dtype.startswith("u") else -50
    return rng.integers(low, 50, LENGTH).astype(dtype)


BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": te.maximum,
    "min": te.minimum,
    "fused": lambda a, b: a * b + a,
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "int8", "uint8", "uint32"])
@pytest.mark.parametrize("name", BINARY)
def test_compiled_binary_operators_match_numpy(name: str, dtype: str) -> None:
    a, b = te.placeholder((LENGTH,), dtype, "a"), te.placeholder((LENGTH,), dtype, "b")
    check([a, b], te.compute((LENGTH,), lambda i: BINARY[name](a[i], b[i]), "c"), [sample(dtype, 0), sample(dtype, 1)])


@pytest.mark.parametrize("dtype", ["float32", "int64", "int32", "int8"])
def test_division_rounds_towards_minus_infinity(dtype: str) -> None:
    a, b = te.placeholder((LENGTH,), dtype, "a"), te.placeholder((LENGTH,), dtype, "b")
    divisor = sample(dtype, 1)
    divisor[divisor == 0] = 7
    for function in (lambda i: a[i] // b[i], lambda i: a[i] % b[i]):
        check([a, b], te.compute((LENGTH,), function, "c"), [sample(dtype, 0), divisor], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_remainder_of_floats_is_exact(dtype: str) -> None:
    """Where the quotient has more digits than the type, or rounds up to an integer."""
    a, b = te.placeholder((LENGTH,), dtype, "a"), te.placeholder((LENGTH,), dtype, "b")
    values = [(sample(dtype, 0) * 1000).astype(dtype), (sample(dtype, 1) / 7).astype(dtype)]
    values[0][:8], values[1][:8] = [1, -1, 0, -0.0, 1, np.inf, -1, 1], [0.1, 0.1, -3, 3, 0, 2, np.inf, np.inf]
    for function in (lambda i: a[i] // b[i], lambda i: a[i] % b[i]):
        check([a, b], te.compute((LENGTH,), function, "c"), values)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_comparisons_make_bools(dtype: str) -> None:
    a, b = te.placeholder((LENGTH,), dtype, "a"), te.placeholder((LENGTH,), dtype, "b")
    values = [sample(dtype, 0), sample(dtype, 1)]
    values[1][::3] = values[0][::3]
    functions: list[Callable[[Expr], Expr]] = [
        lambda i: a[i] < b[i],
        lambda i: a[i] >= b[i],
        lambda i: te.equal(a[i], b[i]),
        lambda i: te.logical_or(te.not_equal(a[i], b[i]), a[i] > 1),
        lambda i: te.logical_not(te.logical_and(a[i] <= b[i], b[i] < 20)),
    ]
    for function in functions:
        check([a, b], te.compute((LENGTH,), function, "c"), values)


TYPES = ["float32", "float64", "int64", "int32", "int8", "uint8", "bool"]


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_compiled_casts_match_numpy(source: str, target: str) -> None:
    a = te.placeholder((LENGTH,), source, "a")
    values = sample(source, 0)
    if target == "uint8" and source != "bool":
        values = np.abs(values)
    check([a], te.compute((LENGTH,), lambda i: te.cast(target, a[i]), "c"), [values])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "floor", "ceil", "round", "abs"]
)
def test_compiled_math_functions_match_numpy(name: str, dtype: str) -> None:
    a = te.placeholder((LENGTH,), dtype, "a")
    values = np.abs(sample(dtype, 0)) + 0.1 if name in ("log", "sqrt", "rsqrt") else sample(dtype, 0)
    check([a], te.compute((LENGTH,), lambda i: getattr(te, name)(a[i]), "c"), [values], rtol=3e-6)


def test_compiled_power_of_a_constant_matches_numpy() -> None:
    a = te.placeholder((LENGTH,), name="a")
    check([a], te.compute((LENGTH,), lambda i: te.pow(a[i], 2.5), "c"), [np.abs(sample("float32", 0))], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_a_power_of_two_types(dtype: str) -> None:
    a, b = te.placeholder((LENGTH,), name="a"), te.placeholder((LENGTH,), dtype, "b")
    values = [np.abs(sample("float32", 0)) + 0.5, np.arange(LENGTH).astype(dtype) % 4]
    for function in (lambda i: te.pow(a[i], b[i]), lambda i: te.pow(2.0, b[i]), lambda i: te.pow(a[i], 3)):
        check([a, b], te.compute((LENGTH,), function, "c"), values, rtol=1e-5)


def test_undefined_cast_times_zero_is_zero() -> None:
    """A NaN as an integer is some number, and so its product with 0 is 0."""
    a = te.placeholder((LENGTH,), name="a")

    def body(i: Expr) -> Expr:
        zero = te.cast("float32", i - i)
        return te.cast("int32", zero / zero) * te.cast("int32", a[i]) + 5

    for steps in ((), (Annotate(1, 0, Annotation.VECTORIZE),)):
        assert run([a], te.compute((LENGTH,), body, "c"), [np.zeros(LENGTH, "float32")], steps).tolist() == [5] * LENGTH


def test_a_number_before_a_quotient() -> None:
    a = te.placeholder((LENGTH,), "int32", "a")
    output = te.compute((LENGTH,), lambda i: 1000 // a[i] + 1000 % a[i], "c")
    check([a], output, [sample("int32", 0)])
    check([a], te.compute((1,), lambda i: 10 // i + te.cast("int64", a[i]), "c"), [sample("int32", 0)])


def test_a_side_not_taken_is_not_read() -> None:
    """The reads would leave the fenced buffer on both sides."""
    a = te.placeholder((LENGTH,), name="a")
    shifted = te.compute(
        (LENGTH + 8000,),
        lambda i: te.if_then_else(te.logical_and(i >= 4000, i < 4000 + LENGTH), a[i - 4000], -1.0),
        "c",
    )
    check([a], shifted, [sample("float32", 0)])


def test_lazy_choices_per_lane_and_for_all_lanes() -> None:
    a, b = te.placeholder((7, LENGTH), name="a"), te.placeholder((7, LENGTH), name="b")
    values = [np.random.default_rng(seed).uniform(-1, 1, (7, LENGTH)).astype("float32") for seed in range(2)]
    functions: list[Callable[[Expr, Expr], Expr]] = [
        lambda i, j: te.if_then_else(i < 3, a[i, j], b[i, j]),
        lambda i, j: te.if_then_else(j < 30, a[i, j] * 2.0, b[i, j]),
        lambda i, j: te.if_then_else(a[i, j] > 0.0, a[i, j], b[i, j] + 1.0),
        lambda i, j: te.if_then_else(te.logical_and(i > 1, j > 2), a[i - 2, j - 3], 0.5),
    ]
    for function in functions:
        check([a, b], te.compute((7, LENGTH), function, "c"), values)


@pytest.mark.parametrize(
    "choice",
    [
        lambda x, _: te.if_then_else(x > 0.0, x, x * 0.1),
        lambda x, y: te.if_then_else(x + y > 0.0, y, te.if_then_else(x > y, x, y * 2.0)),
        lambda x, y: te.if_then_else(te.if_then_else(x > 0.0, 2.0, 1.0) > 1.5, x * y, y + x * 0.5),
    ],
)
def test_a_choice_between_what_is_read_in_any_case_has_no_branch(choice: Callable[[Expr, Expr], Expr]) -> None:
    a, b = te.placeholder((LENGTH,), name="a"), te.placeholder((LENGTH,), name="b")
    chosen = te.compute((LENGTH,), lambda i: choice(a[i], b[i]), "c")
    values = [np.random.default_rng(seed).uniform(-1, 1, LENGTH).astype("float32") for seed in range(2)]
    check([a, b], chosen, values)
    steps = (Annotate(2, 0, Annotation.VECTORIZE),)
    task = SearchTask("t", ComputeDAG([a, b, chosen]), Target("llvm -mcpu=haswell"), HardwareParams(1))
    assert "sel" not in set(re.findall(r"%([a-z]+)\d", kernel_source(task, steps, "llvm")))


@pytest.mark.parametrize(
    "choice",
    [
        lambda i, x: te.if_then_else(te.if_then_else(i < LENGTH, x(i), 0.0) > 0.0, x(i), 0.5),
        lambda i, x: te.if_then_else(te.if_then_else(i < LENGTH, x(i), -1.0) > 0.0, x(i) * 2.0, i * 1.0),
        lambda i, x: te.if_then_else(i < LENGTH, te.if_then_else(x(i) > 0.0, x(i), x(i) * 0.1), 2.0),
    ],
)
def test_what_only_a_nested_choice_reads_is_not_read_in_any_case(choice: Callable[..., Expr]) -> None:
    """The reads beyond the end would leave the fenced buffer."""
    a = te.placeholder((LENGTH,), name="a")
    check([a], te.compute((LENGTH + 4000,), lambda i: choice(i, lambda at: a[at]), "c"), [sample("float32", 0)])


def test_reads_that_are_turned_strided_reversed_or_the_same_for_all_lanes() -> None:
    a = te.placeholder((LENGTH, LENGTH), name="a")
    values = [np.random.default_rng(0).uniform(-1, 1, (LENGTH, LENGTH)).astype("float32")]
    functions: list[Callable[[Expr, Expr], Expr]] = [
        lambda i, j: a[j, i],
        lambda i, j: a[i, 2 * j],
        lambda i, j: a[i, 25 - j],
        lambda i, j: a[j, 3] + a[3, i],
        lambda i, j: a[(i * 26 + j) // 26, (i * 26 + j) % 26],
        lambda i, j: te.cast("float32", i * 100 + j),
    ]
    for function in functions:
        check([a], te.compute((26, 26), function, "c"), values)


def test_a_read_through_an_index_tensor() -> None:
    a, index = te.placeholder((LENGTH,), name="a"), te.placeholder((LENGTH,), "int64", "index")
    order = np.random.default_rng(0).permutation(LENGTH)
    check([a, index], te.compute((LENGTH,), lambda i: a[index[i]], "c"), [sample("float32", 0), order])


def test_a_scalar_result() -> None:
    a = te.placeholder((LENGTH,), name="a")
    k = te.reduce_axis(LENGTH, "k")
    total = te.compute((), lambda: te.sum(a[k], k), "total")
    values = sample("float32", 0)
    np.testing.assert_allclose(run([a], total, [values], ()), values.sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "max", "min", "prod"])
def test_reductions_inside_a_vector_loop(combiner: str) -> None:
    a = te.placeholder((9, 150), name="a")
    k = te.reduce_axis(9, "k")
    values = [np.random.default_rng(0).uniform(0.5, 1.5, (9, 150)).astype("float32")]
    output = te.compute((150,), lambda j: getattr(te, combiner)(a[k, j], k), "c")
    expected = evaluate([output], {a: values[0]})[0]
    got = run([a], output, values, (Annotate(1, 0, Annotation.VECTORIZE),))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "max", "min", "prod"])
def test_reductions_of_bools(combiner: str) -> None:
    a = te.placeholder((4, LENGTH), "bool", "a")
    k = te.reduce_axis(4, "k")
    value = np.stack([sample("bool", seed) for seed in range(4)])
    check([a], te.compute((LENGTH,), lambda i: getattr(te, combiner)(a[k, i], k), "c"), [value])


@pytest.mark.parametrize("name", ["add", "mul", "max", "min"])
def test_arithmetic_of_bools(name: str) -> None:
    a, b = te.placeholder((LENGTH,), "bool", "a"), te.placeholder((LENGTH,), "bool", "b")
    check(
        [a, b], te.compute((LENGTH,), lambda i: BINARY[name](a[i], b[i]), "c"), [sample("bool", 0), sample("bool", 1)]
    )


def test_a_division_by_zero_that_is_not_taken_does_not_happen() -> None:
    a = te.placeholder((LENGTH,), "int64", "a")
    quotient = te.compute((LENGTH,), lambda i: te.if_then_else(te.const(0) < i, a[i] + te.const(7) // i, a[i]), "c")
    plain = te.compute((LENGTH,), lambda i: te.if_then_else(te.const(0) < i, te.const(70) // i, te.const(0)), "c")
    check([a], quotient, [sample("int64", 0)])
    check([a], te.compute((LENGTH,), lambda i: a[i] + plain[i], "d"), [sample("int64", 0)])


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_an_index_of_a_narrow_type(dtype: str) -> None:
    a, places = te.placeholder((LENGTH,), "float32", "a"), te.placeholder((LENGTH,), dtype, "places")
    values = [sample("float32", 0), np.random.default_rng(1).integers(0, LENGTH, LENGTH).astype(dtype)]
    check([a, places], te.compute((LENGTH,), lambda i: a[places[i]] * 2.0, "c"), values)


def test_an_index_that_wraps_around_in_its_narrow_type() -> None:
    a = te.placeholder((256,), "float32", "a")
    one, other = te.placeholder((LENGTH,), "uint8", "one"), te.placeholder((LENGTH,), "uint8", "other")
    rng = np.random.default_rng(1)
    values = [rng.random(256, "float32"), *(rng.integers(0, 256, LENGTH).astype("uint8") for _ in range(2))]
    functions: list[Callable[[Expr], Expr]] = [
        lambda i: a[one[i] + other[i]],
        lambda i: a[(te.cast("int64", one[i] * 3) * 300 + i) // 300],
        lambda i: a[te.cast("int64", te.cast("int8", i) * te.const(3, "int8")) + 128],
        lambda i: te.if_then_else(te.cast("int64", te.cast("int32", i) * te.const(1 << 30, "int32")) < 5, a[i], 0.0),
    ]
    for function in functions:
        check([a, one, other], te.compute((LENGTH,), function, "c"), values)


@pytest.mark.parametrize("shift", [0, 5])
def test_the_region_of_a_divided_index_from_data(shift: int) -> None:
    """Negative numbers as well as others choose what is computed inside the loop that reads it."""
    x, places = te.placeholder((256,), "float32", "x"), te.placeholder((16,), "int32", "places")
    twice = te.compute((256,), lambda i: x[i] * 2.0, "twice")
    output = te.compute((16,), lambda i: twice[places[i] // (1 << (24 + shift)) + 128], "c")
    values = [np.arange(256, dtype="float32"), np.arange(-(1 << 31), 1 << 31, 1 << 28, dtype="int64").astype("int32")]
    expected = evaluate([output], dict(zip([x, places], values, strict=True)))[0]
    stages = ComputeDAG([x, places, output])
    inside = ComputeAt(stages.id_of(twice), stages.id_of(output), 0)
    np.testing.assert_array_equal(run([x, places], output, values, (inside,)), expected)


def test_a_computed_index_is_read_again_after_it_was_written() -> None:
    a, places = te.placeholder((LENGTH,), "float32", "a"), te.placeholder((4,), "int64", "places")
    turned = te.compute((4,), lambda i: (places[i] * 3) % LENGTH, "turned")
    output = te.compute((4,), lambda i: a[turned[i]], "c")
    values = [sample("float32", 0), np.array([5, 50, 7, 21])]
    expected = evaluate([output], dict(zip([a, places], values, strict=True)))[0]
    stages = ComputeDAG([a, places, output])
    inside = ComputeAt(stages.id_of(turned), stages.id_of(output), 0)
    unrolled = Annotate(stages.id_of(output), 0, Annotation.UNROLL)
    np.testing.assert_array_equal(run([a, places], output, values, (inside, unrolled)), expected)


def test_compiled_half_arithmetic_matches_numpy() -> None:
    a, b = te.placeholder((LENGTH,), "float16", "a"), te.placeholder((LENGTH,), "float16", "b")
    output = te.compute((LENGTH,), lambda i: te.minimum(a[i] * b[i] + a[i], 1e9), "c")
    check([a, b], output, [sample("float16", 0), sample("float16", 1)], rtol=2e-2)


def test_a_long_vector_loop_that_reads_one_local_element_is_a_loop() -> None:
    x, k = te.placeholder((2, 4096), name="x"), te.reduce_axis(4096, "k")
    total = te.compute((2,), lambda i: te.sum(x[i, k], k), "total")
    dag = ComputeDAG([x, te.compute((2, 4096), lambda i, j: x[i, j] - total[i], "apart")])
    steps = (ComputeAt(1, 2, 0), Annotate(2, 1, Annotation.VECTORIZE))
    text = kernel_source(SearchTask("t", dag, Target.host(), HardwareParams(1)), steps, "llvm")
    assert text.count("fsub") < 20
    values = [np.random.default_rng(0).uniform(-1, 1, (2, 4096)).astype("float32")]
    expected = evaluate(dag.outputs, dict(zip([x], values, strict=True)))[0]
    np.testing.assert_allclose(run([x], dag.outputs[0], values, steps), expected, rtol=1e-4, atol=1e-4)


BITS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a, b: ~a | ~b,
    "masked": lambda a, _: (a & 0x55) | 3,
}


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "uint32", "uint64", "bool"])
@pytest.mark.parametrize("name", BITS)
def test_compiled_bit_operations_match_numpy(name: str, dtype: str) -> None:
    if dtype == "bool" and name == "masked":
        pytest.skip("a bool has one bit")
    a, b = te.placeholder((LENGTH,), dtype, "a"), te.placeholder((LENGTH,), dtype, "b")
    output = te.compute((LENGTH,), lambda i: BITS[name](a[i], b[i]), "c")
    assert output.dtype == dtype
    check([a, b], output, [sample(dtype, 0), sample(dtype, 1)])


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "uint32"])
def test_shifts_by_any_amount(dtype: str) -> None:
    """By less than the width, by more, and by negative amounts."""
    a, b = te.placeholder((LENGTH,), dtype, "a"), te.placeholder((LENGTH,), dtype, "b")
    amounts = (np.arange(LENGTH) - (0 if dtype.startswith("u") else 4)).astype(dtype) % (np.iinfo(dtype).max // 2)
    amounts[:3] = np.array([-1, -100, -3]).astype(dtype)
    functions: list[Callable[[Expr], Expr]] = [
        lambda i: a[i] << b[i],
        lambda i: a[i] >> b[i],
        lambda i: (a[i] << 2) >> 1,
        lambda i: 5 << b[i],
    ]
    for function in functions:
        check([a, b], te.compute((LENGTH,), function, "c"), [sample(dtype, 0), amounts])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_compiled_isnan_matches_numpy(dtype: str) -> None:
    a = te.placeholder((LENGTH,), dtype, "a")
    values = sample(dtype, 0)
    values[::4], values[1::7] = np.nan, np.inf
    output = te.compute((LENGTH,), lambda i: te.isnan(a[i]), "c")
    assert output.dtype == "bool"
    check([a], output, [values])
    cleaned = te.compute((LENGTH,), lambda i: te.if_then_else(te.isnan(a[i]), -1.0, a[i]), "c")
    check([a], cleaned, [values])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("function", [te.maximum, te.minimum])
def test_a_nan_on_either_side_stays(function: Callable[..., Expr], dtype: str) -> None:
    a, b = te.placeholder((LENGTH,), dtype, "a"), te.placeholder((LENGTH,), dtype, "b")
    values = [sample(dtype, 0), sample(dtype, 1)]
    values[0][::4] = values[1][::6] = np.nan
    values[1][1::5] = -np.inf
    for body in (
        lambda i: function(a[i], b[i]),
        lambda i: function(a[i], 0.5) + function(0.5, b[i]),
        lambda i: function(function(a[i], 0.0), b[i] * 2.0),
    ):
        check([a, b], te.compute((LENGTH,), body, "c"), values, rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("steps", [(), (Reorder(1, (1, 0)), Annotate(1, 1, Annotation.VECTORIZE))], ids=str)
def test_maxima_and_minima_keep_nans(steps: tuple[Step, ...], dtype: str) -> None:
    a, k = te.placeholder((6, LENGTH), dtype, name="a"), te.reduce_axis(LENGTH, "k")
    values = np.stack([sample("float32", seed) for seed in range(6)]).astype(dtype)
    values[0, ::3], values[1, 0], values[2, -1], values[3], values[4, 5:9] = np.nan, np.nan, np.nan, np.nan, np.inf
    own = te.comm_reducer(lambda x, y: te.maximum(y, x), te.smallest, "own")
    for reduce, join in ((te.max, np.maximum), (te.min, np.minimum), (own, np.maximum)):
        output = te.compute((6,), lambda i, reduce=reduce: reduce(a[i, k], k), "c")
        wanted = join.reduce(values.astype("float64"), axis=1)
        assert np.isnan(wanted).tolist() == [True, True, True, True, False, False]
        for found in (run([a], output, [values], steps), evaluate([output], {a: values})[0]):
            np.testing.assert_array_equal(found.astype("float64"), wanted)


@pytest.mark.parametrize(("target", "width"), [("llvm -mcpu=x86-64", 16), ("llvm -mcpu=x86-64-v3", 32)])
def test_a_product_and_a_sum_are_never_a_call(target: str, width: int) -> None:
    a, b = te.placeholder((64,), name="a"), te.placeholder((64,), name="b")
    dag = ComputeDAG([a, b, te.compute((64,), lambda i: a[i] * b[i] + a[i], "c")])
    task = SearchTask("t", dag, Target(target), HardwareParams(1, vector_unit_bytes=width))
    text = kernel_source(task, (Annotate(2, 0, Annotation.VECTORIZE),), "asm")
    assert "fmaf" not in text
    assert ("vfmadd" in text) == (width == 32)


def test_functions_of_integers() -> None:
    a = te.placeholder((LENGTH,), "uint8", "a")
    for function in (te.abs, te.floor, te.round):
        check([a], te.compute((LENGTH,), lambda i, f=function: f(a[i]), "c"), [sample("uint8", 0) + np.uint8(200)])
    with pytest.raises(DefinitionError, match="cast it to a float"):
        te.exp(a[0])
