"""In: a kernel whose threads add up numbers in buffers of their own. Out: one that does several steps of a sum a turn.

Always: every sum has its terms in the same order as before. The steps of a sum stand outside of the points that are
added to, so that what one step reads is read once; as many steps are written out as the code has room for, in fours
where they are as many, so that four neighbours along the sum are read at once.

    before: unroll i in 4: for k in 8: c[i] = c[i] + a[i, k] * b[k]
    after:  for k in 2: unroll k' in 4: unroll i in 4: c[i] = c[i] + a[i, k * 4 + k'] * b[k * 4 + k']
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Expr, Load, Var
from retune.compiler.ir.stmt import (
    For,
    If,
    Let,
    LoopFunction,
    LoopKind,
    Stmt,
    Store,
    map_exprs,
    map_inner,
    map_stmt,
    walk_stmt,
)
from retune.compiler.ir.visit import substitute, walk
from retune.compiler.lower.gpu.register_buffers import MOST_STATEMENTS, copies_of

MOST_TOGETHER = 1024
"""Statements of a turn: more would not stay in the instruction cache."""

MOST_STEPS = 32
"""Steps of a sum of a turn: more are not worth their code."""

_READ_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class SumLoops:
    """Puts the loops of a sum outside of those over its points, and writes some of their turns out."""

    name: str = "sum-loops"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with the loops of its sums so."""
        ordered = _ordered(function.body)
        body = map_stmt(ordered, _written_out)
        return replace(function, body=body if copies_of(body) <= MOST_STATEMENTS else ordered)


def _ordered(stmt: Stmt) -> Stmt:
    """The statement with the loops of every sum in order, the outermost ones first."""
    loops, leaf = _chain(stmt)
    if len(loops) > 1 and isinstance(leaf, Store) and _is_sum(leaf):
        points = [loop for loop in loops if loop.var in _vars(leaf.indices)]
        if all(loop.kind is LoopKind.UNROLL for loop in points) and _differ(leaf, points):
            for loop in reversed([*(loop for loop in loops if loop not in points), *points]):
                leaf = replace(loop, body=leaf)
            return leaf
    return map_inner(stmt, _ordered)


def _chain(stmt: Stmt) -> tuple[list[For], Stmt]:
    """The loops around a statement, each of which holds nothing but the next, and the statement."""
    loops: list[For] = []
    while isinstance(stmt, For) and stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLL):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _is_sum(stmt: Store) -> bool:
    """Whether a thread's own buffer is read at the very element that is written, and nowhere else."""
    loads = [node for node in walk(stmt.value) if isinstance(node, Load) and node.buffer == stmt.buffer]
    return stmt.buffer.scope == "local" and bool(loads) and all(load.indices == stmt.indices for load in loads)


def _vars(exprs: Sequence[Expr]) -> set[Var]:
    return {node for expr in exprs for node in walk(expr) if isinstance(node, Var)}


def _differ(leaf: Store, points: Sequence[For]) -> bool:
    """Whether every turn of the loops writes another element."""
    form = flat_index(leaf.buffer.shape, leaf.indices)
    if prod(loop.extent for loop in points) > MOST_STATEMENTS or set(form.terms) != {loop.var for loop in points}:
        return False
    steps = [[form.terms[loop.var] * turn for turn in range(loop.extent)] for loop in points]
    places = [sum(each) for each in product(*steps)]
    return len(set(places)) == len(places)


def _written_out(stmt: Stmt) -> Stmt | None:
    """An innermost loop over the steps of sums with some of them a turn, or all of them."""
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.SERIAL or not _sums_alone(stmt.body):
        return None
    each = copies_of(stmt.body)
    done = _steps_in(stmt.body)
    room = min(MOST_TOGETHER // each, max(1, MOST_STEPS // done))
    if stmt.extent <= room:
        return replace(stmt, kind=LoopKind.UNROLL)
    divisors = [steps for steps in range(2, room + 1) if stmt.extent % steps == 0]
    if not divisors:
        return None
    steps = max(divisors, key=lambda steps: (steps % _READ_AT_ONCE == 0, steps))
    inner = Var(f"{stmt.var.name}.step")
    known: dict[Expr, Expr] = {stmt.var: stmt.var * steps + inner}
    body = map_exprs(stmt.body, lambda expr: substitute(expr, known))
    return replace(stmt, extent=stmt.extent // steps, body=For(inner, steps, LoopKind.UNROLL, body))


def _sums_alone(stmt: Stmt) -> bool:
    """Whether nothing is in a statement but sums in a thread's own buffers, and loops that are written out."""
    for inner in walk_stmt(stmt):
        match inner:
            case For(kind=LoopKind.UNROLL) | If() | Let():
                continue
            case Store() if _is_sum(inner):
                continue
        return False
    return True


def _steps_in(stmt: Stmt) -> int:
    """Steps of the sums in a statement that are written out already."""
    loops, leaf = _chain(stmt)
    written = _vars(leaf.indices) if isinstance(leaf, Store) else set()
    return prod(loop.extent for loop in loops if loop.var not in written)
