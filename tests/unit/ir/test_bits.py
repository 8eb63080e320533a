"""Bits of literals fold as the types' own arithmetic does; types without bits are refused."""

import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import BOOL, Const, Expr, Not, Var, const


@pytest.mark.parametrize(
    ("folded", "value"),
    [
        (const(6) & const(3), 2),
        (const(6) | 1, 7),
        (const(6) ^ const(3), 5),
        (~const(0, "uint8"), 255),
        (~const(0, "int8"), -1),
        (const(100, "int8") << 1, -56),
        (const(200, "uint8") << 1, 144),
        (const(1) << 63, -(1 << 63)),
        (const(1) << 64, 0),
        (const(-8) >> 1, -4),
        (const(-8) >> 70, -1),
        (const(8) >> -1, 0),
        (const(100, "int8") + 100, -56),
    ],
)
def test_literals_fold_within_their_type(folded: Expr, value: int) -> None:
    assert isinstance(folded, Const)
    assert folded.value == value


def test_neutral_operands_leave_the_other_one() -> None:
    x = Var("x")
    assert x << 0 == x
    assert x >> 0 == x
    assert x | 0 == x
    assert 0 ^ x == x
    assert str((x & 7) << 2) == "((x & 7) << 2)"


def test_bits_of_bools_are_logic() -> None:
    p, q = Var("p", BOOL), Var("q", BOOL)
    assert str(p & q) == "(p and q)"
    assert str(p | q) == "(p or q)"
    assert str(p ^ q) == "(p != q)"
    assert ~p == Not(p)


def test_types_without_bits_are_refused() -> None:
    with pytest.raises(DefinitionError, match="cast to an integer"):
        Var("x", "float32") & Var("y", "float32")
    with pytest.raises(DefinitionError, match="cast to an integer"):
        Var("p", BOOL) << Var("q", BOOL)
    with pytest.raises(DefinitionError, match="cast to an integer"):
        Var("x") << 1.5
