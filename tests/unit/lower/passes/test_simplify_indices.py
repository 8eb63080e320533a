"""Quotients and remainders that the loops know are folded, others stay."""

import pytest

from retune.compiler.ir.expr import INDEX, Buffer, Expr, Load, Var
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Stmt, Store
from retune.compiler.lower.passes.simplify_indices import simplify_indices

ROW, COLUMN = Var("i", INDEX), Var("j", INDEX)


def folded(index: Expr, i: int = 4, j: int = 8) -> str:
    out, source = Buffer("out", (i, j), "float32"), Buffer("source", (1000,), "float32")
    body: Stmt = Store(out, (ROW, COLUMN), Load(source, (index,)))
    for var, extent in ((COLUMN, j), (ROW, i)):
        body = For(var, extent, LoopKind.SERIAL, body)
    function = simplify_indices(LoopFunction("f", (source, out), (), body, 1))
    inner = function.body
    while isinstance(inner, For):
        inner = inner.body
    assert isinstance(inner, Store)
    assert isinstance(inner.value, Load)
    return str(inner.value.indices[0])


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((ROW * 8 + COLUMN) // 8, "i"),
        ((ROW * 8 + COLUMN) % 8, "j"),
        ((ROW * 16 + COLUMN + 8) // 8, "((i * 2) + 1)"),
        ((ROW * 16 + COLUMN + 8) % 8, "j"),
        (COLUMN // 8, "0"),
        (ROW % 4, "i"),
        ((ROW * 8 + COLUMN) // 2 % 4, "(j // 2)"),
        # undecided: the rest may reach the divisor, or lie below zero
        ((ROW * 8 + COLUMN + 1) // 8, "(i + ((j + 1) // 8))"),
        ((ROW * 8 - COLUMN) % 8, "((j * -1) % 8)"),
        ((ROW * COLUMN) % 8, "((i * j) % 8)"),
    ],
)
def test_quotients_and_remainders_of_indices_fold(index: Expr, expected: str) -> None:
    assert folded(index) == expected
