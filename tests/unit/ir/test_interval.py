"""What a condition's variables can be decides it, or not; never wrongly."""

from itertools import product

import numpy as np
import pytest

from retune.compiler.ir.affine import affine
from retune.compiler.ir.expr import Buffer, Expr, Load, Var, const
from retune.compiler.ir.interval import as_index, conjuncts, decide_condition, limits, slack

A, B = Var("a"), Var("b")
RANGES = {A: (0, 6), B: (2, 4)}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (A * 4 + B < 29, True),
        (A * 4 + B < 28, None),
        (A * 4 + B < 2, False),
        (A * 4 + B <= 2, None),
        (A - A < 1, True),
        (const(0) <= A // 3, True),
        (A // 3 < 3, True),
        (A // 3 < 2, None),
        (A % 4 < 4, True),
        (B % 5 < 2, False),
        (const(True), True),
        (Load(Buffer("n", (), "int64"), ()) > A, None),
        (Var("unknown") < 3, None),
    ],
)
def test_conditions_are_decided_from_ranges(condition: Expr, expected: bool | None) -> None:
    assert decide_condition(condition, RANGES) is expected


def test_a_decision_holds_at_every_point() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        p, q, r, s = (int(value) for value in rng.integers(-5, 6, 4))
        form = A * p + (B * q + r) // (abs(s) + 1) + (A + r) % (abs(q) + 1)
        low, high = limits(affine(form), RANGES)
        for a, b in product(range(7), range(2, 5)):
            value = p * a + (q * b + r) // (abs(s) + 1) + (a + r) % (abs(q) + 1)
            assert low <= value <= high


def test_conjunctions_are_decided_part_by_part() -> None:
    assert conjuncts((A < 3) & (B < 4) & (A < B)) == (A < 3, B < 4, A < B)
    form = slack(A * 2 < B)
    assert form is not None
    assert (form.const, dict(form.terms)) == (-1, {A: -2, B: 1})
    assert affine(as_index(form)) == form
    assert slack(Var("x", "float32") < 1.0) is None
