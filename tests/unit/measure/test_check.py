"""Comparing answers, and making inputs."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.dtype import sum_type
from retune.compiler.measure.check import Expected, poison, random_input, roundings_of
from retune.compiler.runtime.artifact import ArgSpec, Array
from retune.compiler.schedule.dag import ComputeDAG

ROWS, COLUMNS = 12, 10
TYPES = ("float64", "float32", "tf32", "float16", "bfloat16")
"""The types in which products are stored, but tf32: float32 whose factors are rounded."""


def _round_to_tf32(array: Array) -> Array:
    return ((array.view("uint32") + 0x1000) & 0xFFFFE000).view("float32")


def _products(kind: str, length: int, seed: int = 0) -> tuple[Array, Array]:
    """Products of random matrices, summed in two orders as programs do: in float32 at least, and rounded once."""
    rng = np.random.default_rng(seed)
    dtype = "float32" if kind == "tf32" else kind
    left, right = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((ROWS, length), (length, COLUMNS)))
    left, right = left.astype(sum_type(dtype)), right.astype(sum_type(dtype))
    one = (left @ right).astype(dtype)
    if kind == "tf32":
        left, right = _round_to_tf32(left), _round_to_tf32(right)
    other = np.zeros((ROWS, COLUMNS), left.dtype)
    for place in reversed(range(0, length, 7)):
        other += left[:, place : place + 7] @ right[place : place + 7]
    return one, other.astype(dtype)


def _expected(kind: str, values: Array, length: int) -> Expected:
    return Expected.of("y", values, length + 1, ("float16",) if kind == "tf32" else ())


@pytest.mark.parametrize("length", [1, 27, 512, 4096, 65536])
@pytest.mark.parametrize("kind", TYPES)
def test_another_order_of_summation_is_right_and_wrong_kernels_are_not(kind: str, length: int) -> None:
    right, reordered = _products(kind, length)
    expected, limit = _expected(kind, right, length), float(np.abs(right.astype("float64")).max())
    assert expected.mismatch(right.copy()) == expected.mismatch(reordered) == ""
    poisoned = right.copy()
    poison(poisoned, expected.values)
    shifted = np.roll(reordered, 1, axis=0)
    stale = _products(kind, length, seed=1)[0]
    for wrong in (np.zeros_like(right), -reordered, poisoned, shifted, stale):
        assert "elements differ" in expected.mismatch(wrong)
    largest = np.unravel_index(np.argmax(np.abs(right.astype("float64"))), right.shape)
    for place in ((3, 4), largest):
        for sign in (-1, 1):
            wrong = reordered.copy()
            wrong[place] = float(right[place]) + sign * 0.1 * limit
            assert "1 of 120 elements differ" in expected.mismatch(wrong)
    wrong = reordered.copy()
    wrong[5, 6] = np.nan
    assert "1 of 120 elements differ" in expected.mismatch(wrong)


def test_rounding_to_tf32_is_allowed_only_where_it_is_asked_for() -> None:
    for length in (16, 256, 4096):
        right, rounded = _products("tf32", length)
        assert _expected("float32", right, length).mismatch(rounded)


@pytest.mark.parametrize(("dtype", "factor"), [("bfloat16", 1.0), ("float32", 1e9), ("float16", 1e9)])
def test_no_allowance_accepts_zeros_or_the_negated_result(dtype: str, factor: float) -> None:
    values = np.array([1.0, -3.0, 0.5], dtype)
    expected = Expected.of("y", values, 1 << 60, ("bfloat16",), factor)
    assert expected.mismatch(np.zeros_like(values))
    assert expected.mismatch(-values)


def test_sums_and_coarse_types_decide_what_is_allowed() -> None:
    x, w = te.placeholder((8, 96), "bfloat16", "x"), te.placeholder((96, 4), "bfloat16", "w")
    k, r = te.reduce_axis(96, "k"), te.reduce_axis(96, "r")
    wide = te.compute((8, 4), lambda i, j: te.sum(te.cast("float32", x[i, k]) * te.cast("float32", w[k, j]), k), "wide")
    # Inputs and their maximum are exact; the sum is float32.
    assert roundings_of(ComputeDAG([x, w, wide])) == (97, ("float32",))
    top = te.compute((8,), lambda i: te.max(x[i, r], r), "top")
    assert roundings_of(ComputeDAG([x, top])) == (1, ())
    narrow = te.compute((8, 4), lambda i, j: te.cast("float16", wide[i, j]) - te.cast("float16", top[i]), "narrow")
    last = te.compute((8, 4), lambda i, j: te.cast("float32", narrow[i, j]), "last")
    assert roundings_of(ComputeDAG([x, w, last])) == (97, ("float16", "float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8", "int64", "bool"])
def test_no_element_that_a_kernel_leaves_out_is_right(dtype: str) -> None:
    right = np.array([0, 1, 1, 0, 127], dtype)
    if right.dtype.kind not in "iub":
        right[1] = np.nan
    expected, left = Expected.of("y", right), right.copy()
    poison(left, expected.values)
    assert "5 of 5 elements differ" in expected.mismatch(left)


def test_nan_and_infinity_must_stand_in_the_same_places() -> None:
    expected = Expected.of("y", np.array([1.0, np.nan, np.inf, -np.inf], np.float32))
    assert expected.mismatch(expected.values.copy()) == ""
    for place, value in ((0, np.nan), (1, 1.0), (2, -np.inf), (3, 0.0), (0, np.inf)):
        actual = expected.values.copy()
        actual[place] = value
        assert f"1 of 4 elements differ; worst at ({place},)" in expected.mismatch(actual)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool"])
def test_integers_must_be_equal(dtype: str) -> None:
    values = random_input(ArgSpec("y", (4, 5), dtype, True), 0, "k", 0)
    expected = Expected.of("y", values, 100)
    assert expected.mismatch(values.copy()) == ""
    actual = values.copy()
    actual[2, 3] = not actual[2, 3]
    assert "worst at (2, 3)" in expected.mismatch(actual)


def test_the_text_gives_both_errors_and_both_values() -> None:
    expected = Expected.of("y", np.array([1.0, 2.0, 4.0], np.float32))
    text = expected.mismatch(np.array([1.0, 2.5, 4.0], np.float32))
    assert "wrong answer in y: 1 of 3 elements differ; worst at (1,): expected 2, got 2.5" in text
    assert "max abs error 0.5 (allowed 3.29e-05" in text
    assert "max rel error 0.25" in text


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
def test_poison_never_equals_an_input_range(dtype: str) -> None:
    output = np.zeros((3, 3), dtype)
    poison(output)
    ordinary = random_input(ArgSpec("x", (3, 3), dtype, False), 0, "k", 0)
    assert output.dtype.kind == "b" or not (output == ordinary).any()
    assert ordinary.dtype == dtype
