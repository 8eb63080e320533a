"""Linear forms: exact where the index is affine, a hull everywhere else, for one program or many."""

import itertools

import numpy as np
import pytest

from retune.compiler.ir.affine import Affine
from retune.compiler.ir.expr import BinaryOp, Expr, Var, binary
from retune.compiler.schedule.linear import Linear, linearize

A, B = Var("a"), Var("b")
KEYS = {A: (0, "a"), B: (0, "b")}
LEAVES: dict[Expr, Linear] = {var: Affine(0, {key: 1}) for var, key in KEYS.items()}
EXTENTS = {(0, "a"): 5, (0, "b"): 3}

INDICES: list[Expr] = [
    A * 4 + B - 2,
    (A - B) * 3,
    A // 2 + B,
    (A * 3 + B) % 4,
    (A * 3 + B) // 15,
    (B + 1) % 8,
    A * B,
    binary(BinaryOp.MIN, A, B * 2),
    binary(BinaryOp.MAX, A - 3, 0),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_limits_cover_every_value(index: Expr) -> None:
    form = linearize(index, LEAVES, EXTENTS)
    low, high = form.limits(EXTENTS)
    for a, b in itertools.product(range(5), range(3)):
        value = eval(str(index), {"a": a, "b": b, "min": min, "max": max})
        assert low <= value <= high
        base = form.const + form.terms.get((0, "a"), 0) * a + form.terms.get((0, "b"), 0) * b
        assert base <= value <= base + form.spread
        if form.exact:
            assert value == base


def test_affine_indices_are_exact_and_others_say_so() -> None:
    assert linearize(A * 4 + B - 2, LEAVES, EXTENTS).exact
    assert linearize((B + 1) % 8, LEAVES, EXTENTS).exact  # stays below 8, so the remainder changes nothing
    assert not linearize(A // 2, LEAVES, EXTENTS).exact


def test_numbers_may_be_arrays_of_programs() -> None:
    extents = {(0, "a"): np.array([5, 9]), (0, "b"): np.array([3, 1])}
    low, high = linearize(A * 4 - B, LEAVES, extents).limits(extents)
    assert list(np.broadcast_to(low, 2)) == [-2, 0]
    assert list(np.broadcast_to(high, 2)) == [16, 32]


def test_digits_of_a_split_loop_are_exact() -> None:
    """a runs over 5 values and b over 3, as the parts of a loop that was split by 3."""
    whole = A * 3 + B
    quotient, remainder = linearize(whole // 3, LEAVES, EXTENTS), linearize((whole + 6) % 3, LEAVES, EXTENTS)
    assert (quotient.exact, dict(quotient.terms), quotient.const) == (True, {(0, "a"): 1, (0, "b"): 0}, 0)
    assert (remainder.exact, dict(remainder.terms), remainder.const) == (True, {(0, "a"): 0, (0, "b"): 1}, 0)
    assert linearize((whole + 7) // 3, LEAVES, EXTENTS).exact is False, "the rest may reach 3"
    assert linearize(whole // 4, LEAVES, EXTENTS).exact is False
    extents = {(0, "a"): np.array([5, 9]), (0, "b"): np.array([3, 1])}
    leaves: dict[Expr, Linear] = {**LEAVES, A: Affine(0, {(0, "a"): np.array([2, 3])})}
    assert linearize((A * 3 + B) // 3, leaves, extents).exact
    mixed = linearize((A * 3 + B) // 2, leaves, {(0, "a"): 5, (0, "b"): 2})
    assert not mixed.exact
    assert np.asarray(mixed.terms[0, "a"]).tolist() == [3, 0], "of the first program alone the factor is even"
    assert list(np.broadcast_to(mixed.spread, 2)) == [0, 18]
