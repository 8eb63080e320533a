"""Fetches ask in their last iteration alone which threads have something left; the same elements are fetched."""

import numpy as np
import pytest

from retune.compiler.ir.expr import Buffer, Expr, Load, Var
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.stmt import (
    Allocate,
    Barrier,
    Block,
    For,
    If,
    LoopFunction,
    LoopKind,
    Stmt,
    Store,
    block,
    walk_stmt,
)
from retune.compiler.lower.gpu.fetch_loops import fetch_loops
from tests.support.simt.execute import execute

X, Y = Buffer("x", (80,), "float32"), Buffer("y", (80,), "float32")
S = Buffer("s", (80,), "float32", "shared")
N, T = Var("n"), INDICES[LoopKind.THREAD_X]


def kernel(guard: Expr, extent: int = 3, target: Buffer = S) -> Kernel:
    """32 threads that fetch x in turns, and write it back."""
    place = N * 32 + T
    fetch = For(N, extent, LoopKind.SERIAL, If(guard, Store(target, (place,), Load(X, (place,)))))
    back = For(N, 3, LoopKind.SERIAL, If(place < 80, Store(Y, (place,), Load(S, (place,)) + 1.0)))
    body: Stmt = Allocate(S, block(fetch, Barrier(), back))
    return Kernel(LoopFunction("k", (X, Y), (), body, 1), (1, 1, 1), (32, 1, 1))


def fetched(made: Kernel) -> list[tuple[int, bool]]:
    """The loops and guards before the barrier: iterations, and whether something is asked in them."""
    assert isinstance(made.body.body, Allocate)
    assert isinstance(made.body.body.body, Block)
    parts = made.body.body.body.statements
    parts = parts[: next(place for place, part in enumerate(parts) if isinstance(part, Barrier))]
    return [
        (part.extent if isinstance(part, For) else 1, any(isinstance(inner, If) for inner in walk_stmt(part)))
        for part in parts
    ]


def test_only_the_last_turn_asks() -> None:
    made = fetch_loops(kernel(N * 32 + T < 80))
    assert fetched(made) == [(2, False), (1, True)]
    x = np.random.default_rng(0).normal(size=80).astype(np.float32)
    ((found,),) = (execute(DeviceFunction("k", (X, Y), (), 1, (made,)), [x]),)
    np.testing.assert_array_equal(found, x + np.float32(1.0))


def test_other_guards_stay_in_every_iteration() -> None:
    made = fetch_loops(kernel((N * 32 + T < 80) & (T < 16)))
    assert fetched(made) == [(2, True), (1, True)]


def test_what_earlier_turns_must_ask_too_stays_whole() -> None:
    for guard in (N * 32 + T < 40, T < 16):
        assert fetched(fetch_loops(kernel(guard))) == [(3, True)]


@pytest.mark.parametrize(("extent", "kind"), [(3, LoopKind.UNROLL), (16, LoopKind.UNROLL), (17, LoopKind.SERIAL)])
def test_few_turns_are_written_out(extent: int, kind: LoopKind) -> None:
    loops = [one for one in walk_stmt(fetch_loops(kernel(T < 16, extent)).body.body) if isinstance(one, For)]
    assert [loop.kind for loop in loops] == [kind, LoopKind.SERIAL]


def test_what_is_written_for_others_stays_whole() -> None:
    before = kernel(N * 32 + T < 80, target=Buffer("g", (80,), "float32"))
    assert fetch_loops(before) == before
