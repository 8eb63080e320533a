"""Quotients and remainders of units of several elements mean what they meant."""

import numpy as np

from retune.compiler.ir.expr import Buffer, Expr, Var
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Stmt, Store
from retune.compiler.lower.gpu.fold_units import FoldUnits
from tests.indices import value_of

T, V = Var("t"), Var("v")
X = Buffer("x", (4096,), "int64")


def folded(index: Expr, turns: int, lanes: int) -> Expr:
    """What becomes of an index inside of two loops."""
    inner: Stmt = For(V, lanes, LoopKind.VECTOR, Store(X, (index,), T * 0 + V))
    result = FoldUnits().apply(LoopFunction("k", (X,), (), For(T, turns, LoopKind.SERIAL, inner), 1)).body
    while isinstance(result, For):
        result = result.body
    assert isinstance(result, Store)
    return result.indices[0]


def test_a_vector_moves_in_one_digit_alone() -> None:
    assert str(folded((T * 4 + V) // 8, 32, 4)) == "(t // 2)"
    assert str(folded((T * 4 + V) % 8, 32, 4)) == "(((t % 2) * 4) + v)"


def test_what_is_longer_than_a_unit_stays() -> None:
    for index in ((T * 4 + V) // 8, (T * 4 + V) % 8):
        assert folded(index, 32, 5) == index
    assert folded((T * 3 + V) % 8, 32, 3) == (T * 3 + V) % 8


def test_every_index_is_what_it_was() -> None:
    rng = np.random.default_rng(1)
    changed = 0
    for _ in range(150):
        step, lanes, divisor, start = (int(one) for one in rng.integers((1, 1, 1, 0), (9, 7, 25, 9)))
        index = T * step + V + start
        for before in (index // divisor, index % divisor):
            after = folded(before, 7, lanes)
            changed += after != before
            for t in range(7):
                for v in range(lanes):
                    values: dict[Expr, int] = {T: t, V: v}
                    assert value_of(before, values) == value_of(after, values), (str(before), str(after))
    assert changed > 10
