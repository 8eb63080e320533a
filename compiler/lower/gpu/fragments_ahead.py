"""In: a kernel with a pipelined product on tensor cores. Out: one in which fragments are loaded a step before they are
multiplied, those of a turn's first step in the turn before.

Always: each step multiplies what was loaded for it. After the barrier of a turn a warp has something to multiply at
once, while the others arrive and the next fragments are loaded. The last turn loads once more what nobody multiplies.

    before: for k: wait; barrier; copy ahead; unroll s in 2: (f = s[k % 3, s]; c += f)
    after:  wait; barrier; f[0] = s[0, 0]; for k: copy ahead; f[1] = s[k % 3, 1]; c += f[0]; wait; barrier;
            f[0] = s[(k + 1) % 3, 0]; c += f[1]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.compiler.ir.expr import Buffer, Expr, const
from retune.compiler.ir.stmt import (
    Allocate,
    Barrier,
    Block,
    For,
    LoopFunction,
    LoopKind,
    Stmt,
    block,
    map_exprs,
    map_stmt,
    walk_stmt,
)
from retune.compiler.ir.tensor_core import CommitGroup, Mma, WaitGroup
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.slots import copies_of, in_slot

_SETS = 2
"""Fragments that are multiplied, and those that are loaded meanwhile."""


@dataclass(frozen=True, slots=True)
class FragmentsAhead:
    """Gives the fragments of pipelined loops a second set of registers; an odd number of steps stays as it is, since
    the sets would change places from turn to turn.
    """

    name: str = "fragments-ahead"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with its fragments ahead of their steps."""
        loops = frozenset(name for name, _ in function.pipelines)
        if not loops:
            return function

        def ahead(stmt: Stmt) -> Stmt | None:
            found = _steps_of(stmt) if isinstance(stmt, For) and stmt.var.name in loops else None
            return None if found is None else found.ahead()

        return replace(function, body=map_stmt(function.body, ahead))


@dataclass(frozen=True, slots=True)
class _Steps:
    """A pipelined loop: it waits, starts copies (`started`), and in each of its steps the lanes load `buffers` and
    multiply them.
    """

    turn: For
    wait: WaitGroup
    started: tuple[Stmt, ...]
    step: For
    lane: For
    buffers: tuple[Buffer, ...]
    loads: Stmt
    products: Stmt

    def ahead(self) -> Stmt:
        """The loop with its fragments a step ahead."""
        first: tuple[Stmt, ...] = (self.wait, Barrier(), self.lanes(self.loaded(const(0), 0)))
        turns: list[Stmt] = [*self.started]
        for number in range(self.step.extent - 1):
            turns.append(self.lanes(block(self.loaded(self.turn.var, number + 1), self.multiplied(number))))
        next_turn = self.loaded(self.turn.var + 1, 0)
        turns.extend((self.wait, Barrier(), self.lanes(block(next_turn, self.multiplied(self.step.extent - 1)))))
        stmt = block(*first, replace(self.turn, body=block(*turns)))
        for buffer in reversed(self.buffers):
            stmt = Allocate(copies_of(buffer, _SETS), stmt)
        return stmt

    def lanes(self, body: Stmt) -> Stmt:
        """Done by all lanes of a warp."""
        return replace(self.lane, body=body)

    def loaded(self, turn: Expr, number: int) -> Stmt:
        """The fragments of a step are loaded."""
        named: dict[Expr, Expr] = {self.turn.var: turn, self.step.var: const(number)}
        moved = map_exprs(self.loads, lambda expr: substitute(expr, named))
        return in_slot(moved, self.buffers, const(number % _SETS), _SETS)

    def multiplied(self, number: int) -> Stmt:
        """The fragments of a step are multiplied."""
        moved = map_exprs(self.products, lambda expr: substitute(expr, {self.step.var: const(number)}))
        return in_slot(moved, self.buffers, const(number % _SETS), _SETS)


def _steps_of(turn: For) -> _Steps | None:
    """The parts of a pipelined loop; None for others, and where the steps of a turn are odd in number."""
    parts = turn.body.statements if isinstance(turn.body, Block) else ()
    match parts:
        case (WaitGroup() as wait, Barrier(), *started, CommitGroup() as commit, For(kind=LoopKind.UNROLL) as step):
            lane = step.body
            if step.extent % _SETS or not isinstance(lane, For) or lane.kind is not LoopKind.THREAD_X:
                return None
            buffers, statements = _fragments(lane.body)
            first = next((n for n, stmt in enumerate(statements) if _multiplies(stmt)), 0)
            if not buffers or not first:
                return None
            loads, products = block(*statements[:first]), block(*statements[first:])
            return _Steps(turn, wait, (*started, commit), step, lane, buffers, loads, products)
    return None


def _fragments(stmt: Stmt) -> tuple[tuple[Buffer, ...], Sequence[Stmt]]:
    """The buffers that a statement begins with, and what it does."""
    buffers: list[Buffer] = []
    while isinstance(stmt, Allocate) and stmt.buffer.scope == "local":
        buffers.append(stmt.buffer)
        stmt = stmt.body
    return tuple(buffers), stmt.statements if isinstance(stmt, Block) else (stmt,)


def _multiplies(stmt: Stmt) -> bool:
    return any(isinstance(inner, Mma) for inner in walk_stmt(stmt))
