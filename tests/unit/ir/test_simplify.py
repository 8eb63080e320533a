"""Simplified indices have the values they had, and the forms that vectors and addresses need."""

import numpy as np
import pytest

from retune.compiler.ir.affine import IndexForm, affine
from retune.compiler.ir.expr import Binary, BinaryOp, Expr, Var, binary, cast
from retune.compiler.ir.interval import as_index
from retune.compiler.ir.simplify import divisor, join_digits, simplify
from tests.support.indices import value_of

N, M = Var("n"), Var("m")
RANGES = {N: (0, 31), M: (0, 3)}


@pytest.mark.parametrize(
    ("index", "simple"),
    [
        ((N * 4 + M) // 8, "(n // 2)"),
        ((N * 4 + M) % 8, "(((n % 2) * 4) + m)"),
        ((N * 4 + M) // 256, "0"),
        ((N * 4 + M) // 12, "(n // 3)"),
        ((N * 16 + M + 4) // 8, "(n * 2)"),
        ((N * 12 + M) // 8, "((n * 3) // 2)"),
    ],
)
def test_units_of_several_elements_are_counted(index: Expr, simple: str) -> None:
    assert str(simplify(index, RANGES)) == simple


def test_remainder_that_may_exceed_the_divisor_is_kept() -> None:
    for index in ((N * 4 + M) // 8, (N * 4 + M) % 8, (N * 3 + M) % 8):
        assert simplify(index, {N: (0, 31), M: (0, 4)}) == index
        assert simplify(index, {N: (0, 31), M: (-1, 2)}) == index
        assert simplify(index, {N: (0, 31)}) == index


def test_simplified_indices_have_the_values_that_they_had() -> None:
    rng = np.random.default_rng(1)
    changed = 0
    for _ in range(150):
        step, lanes, by, more, start = (int(one) for one in rng.integers((1, 1, 1, 1, 0), (9, 7, 25, 4, 9)))
        index = N * step + M + start
        for before in (index // by, index % by, index // by % more, index % (by * more) // by):
            after = simplify(before, {N: (0, 6), M: (0, lanes - 1)})
            changed += after != before
            for n in range(7):
                for m in range(lanes):
                    values: dict[Expr, int] = {N: n, M: m}
                    assert value_of(before, values) == value_of(after, values), (str(before), str(after))
    assert changed > 50


def test_a_divisor_of_numbers_that_wrap_around_is_a_power_of_two() -> None:
    wraps = cast("int32", N)
    six = Binary(BinaryOp.MUL, wraps, cast("int32", binary(BinaryOp.ADD, 6, 0)))
    assert divisor(N * 6) == 6
    assert divisor(N * 6 // 3) == 2
    assert divisor(six) == 2
    assert divisor(Binary(BinaryOp.FLOORDIV, six, cast("int32", binary(BinaryOp.ADD, 3, 0)))) == 1


def after(expr: Expr) -> IndexForm:
    """The form of an index, digits joined."""
    return join_digits(affine(expr))


@pytest.mark.parametrize(
    ("before", "whole"),
    [
        (N // 4 * 4 + N % 4, N),
        ((N // 12) * 12 + N // 4 % 3 * 4 + N % 4, N),
        ((N * 2) // 12 * 36 + (N * 2) // 4 % 3 * 12 + (N * 2) % 4 * 3 + 5, N * 6 + 5),
        (N % 16 * 4 + (M * 7 + N // 16) % 16 * 64 + (M * 112 + N) // 256 % 3 * 1024, (M * 112 + N) % 768 * 4),
        (N % 16 * 4 + (M * 7 + N // 16) % 16 * 64 + (M * 112 + N) // 256 * 1024, M * 448 + N * 4),
        (N // 4 // 3 * 12 + N // 4 % 3 * 4 + N % 4 + M, N + M),
    ],
)
def test_digits_are_put_together(before: Expr, whole: Expr) -> None:
    assert after(before) == affine(whole)


@pytest.mark.parametrize(
    "expr",
    [
        N // 4 * 5 + N % 4,
        N // 4 * 4 + N % 8,
        N // 4 * 4 + M % 4,
        (N + 1) // 4 * 4 + N % 4,
        N % 4 + (N + M * 2) // 4 * 4,
        N % 4,
    ],
)
def test_non_affine_index_is_kept(expr: Expr) -> None:
    assert after(expr) == affine(expr)


def test_the_value_never_changes() -> None:
    rng = np.random.default_rng(0)
    fewer = 0
    for _ in range(300):
        unit, count, weight, shift = (int(each) for each in rng.choice([1, 2, 3, 4, 6, 8, 12], 4))
        number = N * int(rng.integers(1, 4)) + M * int(rng.choice([1, 6, 12, 96])) + int(rng.integers(0, 3))
        other = number + M * int(rng.choice([0, 4, 24, 96, 5])) + N * int(rng.choice([0, 0, 48]))
        low = number % count * weight if unit == 1 else number // unit % count * weight
        higher = other // (unit * count) * (weight * count)
        expr = low + (higher if rng.random() < 0.5 else higher % 1000 + higher) + shift
        form = after(expr)
        fewer += len(form.terms) < len(affine(expr).terms)
        for _ in range(20):
            known: dict[Expr, int] = {N: int(rng.integers(-50, 500)), M: int(rng.integers(-5, 50))}
            assert value_of(as_index(form), known) == value_of(expr, known)
    assert fewer
