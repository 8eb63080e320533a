"""Digits of a number that are added up with their weights are the number; whatever the values, nothing else changes."""

import numpy as np
import pytest

from retune.compiler.ir.affine import Affine, affine
from retune.compiler.ir.digits import joined
from retune.compiler.ir.expr import Binary, Const, Expr, Var
from retune.compiler.ir.interval import as_index
from retune.compiler.ir.numeric import BINARY

N, M = Var("n"), Var("m")


def value(expr: Expr, known: dict[Var, int]) -> int:
    """An index at a point."""
    if isinstance(expr, Var):
        return known[expr]
    if isinstance(expr, Const):
        return int(expr.value)
    assert isinstance(expr, Binary)
    return int(BINARY[expr.op](np.asarray(value(expr.lhs, known)), np.asarray(value(expr.rhs, known))))


def after(expr: Expr) -> Affine:
    """The form of an index, digits joined."""
    return joined(affine(expr))


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
def test_what_is_no_number_stays(expr: Expr) -> None:
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
            known = {N: int(rng.integers(-50, 500)), M: int(rng.integers(-5, 50))}
            assert value(as_index(form), known) == value(expr, known)
    assert fewer
