"""Comparing answers, and making inputs."""

import numpy as np
import pytest

from retune.compiler.measure.check import Expected, poison, random_input
from retune.compiler.measure.task_buffers import TaskSetup
from retune.compiler.runtime.artifact import ArgSpec, Array


def _dot_products(length: int) -> tuple[Array, Array]:
    """256 dot products of random numbers, summed in two orders."""
    rng = np.random.default_rng(0)
    products = (rng.uniform(-1, 1, (256, length)) * rng.uniform(-1, 1, (256, length))).astype(np.float32)
    forwards, backwards = np.zeros(256, np.float32), np.zeros(256, np.float32)
    for place in range(length):
        forwards += products[:, place]
        backwards += products[:, length - 1 - place]
    return forwards, backwards


@pytest.mark.parametrize("length", [1, 27, 576, 4608])
def test_another_order_of_summation_is_allowed_and_a_missing_term_is_not(length: int) -> None:
    forwards, backwards = _dot_products(length)
    expected = Expected.of("y", forwards, operations=2.0 * length)
    assert expected.mismatch(backwards) == ""
    spoilt = backwards.copy()
    spoilt[17] += 0.05  # less than a typical product
    assert "1 of 256 elements differ; worst at (17,)" in expected.mismatch(spoilt)


def test_nan_and_infinity_must_stand_in_the_same_places() -> None:
    expected = Expected.of("y", np.array([1.0, np.nan, np.inf, -np.inf], np.float32), 1.0)
    assert expected.mismatch(expected.values.copy()) == ""
    for place, value in ((0, np.nan), (1, 1.0), (2, -np.inf), (3, 0.0), (0, np.inf)):
        actual = expected.values.copy()
        actual[place] = value
        assert f"1 of 4 elements differ; worst at ({place},)" in expected.mismatch(actual)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool"])
def test_integers_must_be_equal(dtype: str) -> None:
    values = random_input(ArgSpec("y", (4, 5), dtype, True), 0, "k", 0)
    expected = Expected.of("y", values, 100.0)
    assert expected.mismatch(values.copy()) == ""
    actual = values.copy()
    actual[2, 3] = not actual[2, 3]
    assert "worst at (2, 3)" in expected.mismatch(actual)


def test_the_text_gives_both_errors_and_both_values() -> None:
    expected = Expected.of("y", np.array([1.0, 2.0, 4.0], np.float32), 1.0)
    text = expected.mismatch(np.array([1.0, 2.5, 4.0], np.float32))
    assert "wrong answer in y: 1 of 3 elements differ; worst at (1,): expected 2, got 2.5" in text
    assert "max abs error 0.5 (allowed 2.5" in text
    assert "max rel error 0.25" in text


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
def test_poison_never_equals_an_input_range(dtype: str) -> None:
    output = np.zeros((3, 3), dtype)
    poison(output)
    ordinary = random_input(ArgSpec("x", (3, 3), dtype, False), 0, "k", 0)
    assert output.dtype.kind == "b" or not (output == ordinary).any()
    assert ordinary.dtype == dtype


def test_rounding_to_tf32_is_allowed_only_where_it_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    for depth in (16, 256, 4096):
        a, b = rng.uniform(-1, 1, (64, depth)).astype("float32"), rng.uniform(-1, 1, (depth, 64)).astype("float32")
        one, other = (((x.view("uint32") + 0x1000) & 0xFFFFE000).view("float32") for x in (a, b))
        strict, loose = (
            Expected.of("c", a @ b, 2.0 * depth, TaskSetup(tf32=tf32).rounding("float32")) for tf32 in (False, True)
        )
        assert strict.mismatch(one @ other)
        assert not loose.mismatch(one @ other)
        assert loose.mismatch((one @ other) + 0.1 * np.abs(a @ b).max())
    assert TaskSetup(tf32=True).rounding("float16") == 1.0
