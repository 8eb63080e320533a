"""The steps of a thread's sums stand outside of its points, several of them an iteration, and each
sum keeps its order.
"""

import pytest

from retune.compiler.ir.expr import Buffer, Expr, Load, Var, const
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, Store, block, walk_stmt
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.sum_loops import MOST_STEPS, reorder_sums

A, B = Buffer("a", (64, 64), "float32", "shared"), Buffer("b", (64, 64), "float32", "shared")
C = Buffer("c", (4, 4), "float32", "local")
I, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")  # noqa: E741 - as in a formula
SERIAL, UNROLL = LoopKind.SERIAL, LoopKind.UNROLL


def update(step: Expr = K, place: tuple[Expr, Expr] = (I, J)) -> Store:
    """One more product added to a sum."""
    return Store(C, place, Load(C, place) + Load(A, (I, step)) * Load(B, (step, J)))


def after(body: Stmt) -> Stmt:
    """What the pass makes of a loop nest."""
    made = reorder_sums(LoopFunction("f", (), (), Allocate(C, body), 0)).body
    assert isinstance(made, Allocate)
    return made.body


def loops(stmt: Stmt) -> list[tuple[str, int, LoopKind]]:
    """The loops of a statement, the outermost first."""
    return [(str(one.var), one.extent, one.kind) for one in walk_stmt(stmt) if isinstance(one, For)]


def runs(stmt: Stmt, known: dict[Expr, Expr]) -> list[tuple[str, str]]:
    """What is added to what, in the order in which it is done."""
    if isinstance(stmt, For):
        iterations = (runs(stmt.body, {**known, stmt.var: const(iteration)}) for iteration in range(stmt.extent))
        return [each for iteration in iterations for each in iteration]
    assert isinstance(stmt, Store)
    place = tuple(str(substitute(index, known)) for index in stmt.indices)
    return [(str(place), str(substitute(stmt.value, known)))]


def by_sum(stmt: Stmt) -> dict[str, list[str]]:
    """The terms of every sum, in their order."""
    found: dict[str, list[str]] = {}
    for place, value in runs(stmt, {}):
        found.setdefault(place, []).append(value)
    return found


def test_steps_come_outside_of_points_and_are_written_out() -> None:
    inner = For(I, 4, UNROLL, For(N, 2, SERIAL, For(J, 4, UNROLL, update(K * 2 + N))))
    before = For(K, 64, SERIAL, inner)
    made = after(before)
    points = [("i", 4, UNROLL), ("j", 4, UNROLL)]
    assert loops(made) == [("k", 4, SERIAL), ("k.step", 16, UNROLL), ("n", 2, UNROLL), *points]
    assert by_sum(made) == by_sum(before)


@pytest.mark.parametrize(
    ("extent", "iterations", "steps"), [(64, 2, 32), (12, 1, 12), (36, 3, 12), (98, 7, 14), (37, 37, 1)]
)
def test_as_many_steps_a_turn_as_there_is_room_for_in_fours_where_possible(
    extent: int, iterations: int, steps: int
) -> None:
    made = after(For(K, extent, SERIAL, For(I, 4, UNROLL, For(J, 4, UNROLL, update()))))
    assert steps <= MOST_STEPS
    steps_loop = [("k", extent, UNROLL)] if iterations == 1 else [("k", iterations, SERIAL), ("k.step", steps, UNROLL)]
    steps_loop = [("k", extent, SERIAL)] if steps == 1 else steps_loop
    assert loops(made)[:-2] == steps_loop


def test_points_that_meet_keep_their_order() -> None:
    before = For(I, 3, UNROLL, For(K, 37, SERIAL, For(J, 2, UNROLL, update(place=(I + J, const(0))))))
    assert loops(after(before)) == loops(before)


def test_what_writes_what_threads_share_stays_a_loop() -> None:
    shared = For(K, 8, SERIAL, block(Store(A, (K, K), const(1.0)), For(I, 4, UNROLL, For(J, 4, UNROLL, update()))))
    assert loops(after(shared)) == loops(shared)
