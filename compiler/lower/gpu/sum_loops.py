"""Reorder and unroll the loops of sums that threads accumulate in their own buffers.

Every sum keeps the order of its terms. The reduction loops go outside of the loops over the accumulators, so that each
step's operands are read once. As many steps are unrolled as the code has room for, in multiples of four where possible,
so that four contiguous elements along the sum are one load.

    before: unroll i in 4: for k in 8: c[i] = c[i] + a[i, k] * b[k]
    after:  for k in 2: unroll k' in 4: unroll i in 4: c[i] = c[i] + a[i, k * 4 + k'] * b[k * 4 + k']
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Expr, Load, Var
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import accesses_of, nest, perfect_nest, rewrite, rewrite_down, unrolled_size
from retune.compiler.ir.stmt import For, If, Let, LoopFunction, LoopKind, Stmt, Store, map_exprs, walk_stmt
from retune.compiler.ir.visit import find, substitute, variables
from retune.compiler.lower.gpu.register_buffers import MOST_STATEMENTS

MOST_TOGETHER = 1024
"""Statements of an iteration: more would not stay in the instruction cache."""

MOST_STEPS = 32
"""Steps of a sum in an iteration: more are not worth their code."""

_READ_AT_ONCE = 4
_PLAIN = (LoopKind.SERIAL, LoopKind.UNROLL)


def reorder_sums(function: LoopFunction) -> LoopFunction:
    """Move the reduction loops of a sum outside of those over its points, and unroll some of their iterations."""
    ordered = rewrite_down(function.body, {For: _reduce_outside})
    body = rewrite(ordered, {For: _unroll})
    return replace(function, body=body if unrolled_size(body) <= MOST_STATEMENTS else ordered)


def _reduce_outside(loop: For, _: Ranges) -> Stmt | None:
    """The loops of a sum with the reduction loops outermost."""
    match perfect_nest(loop, *_PLAIN):
        case loops, Store() as leaf if len(loops) > 1 and _is_sum(leaf):
            points = [each for each in loops if each.var in variables(*leaf.indices)]
            if all(each.kind is LoopKind.UNROLL for each in points) and _differ(leaf, points):
                return nest([*(each for each in loops if each not in points), *points], leaf)
    return None


def _is_sum(stmt: Store) -> bool:
    """Whether a thread's own buffer is read at exactly the element that is written."""
    loads = [load for load in find(Load, stmt.value) if load.buffer == stmt.buffer]
    return stmt.buffer.scope == "local" and bool(loads) and all(load.indices == stmt.indices for load in loads)


def _differ(leaf: Store, points: Sequence[For]) -> bool:
    """Whether every iteration of the loops writes a different element."""
    form = flat_index(leaf.buffer.shape, leaf.indices)
    if prod(loop.extent for loop in points) > MOST_STATEMENTS or set(form.terms) != {loop.var for loop in points}:
        return False
    # Enumerated, which is exact; the limit above bounds the work.
    steps = [[form.terms[loop.var] * number for number in range(loop.extent)] for loop in points]
    offsets = [sum(terms) for terms in product(*steps)]
    return len(set(offsets)) == len(offsets)


def _unroll(stmt: For) -> Stmt | None:
    """An innermost loop over the steps of sums with some or all of them unrolled."""
    if stmt.kind is not LoopKind.SERIAL or not _sums_alone(stmt.body):
        return None
    size = unrolled_size(stmt.body)
    done = _steps_in(stmt.body)
    room = min(MOST_TOGETHER // size, max(1, MOST_STEPS // done))
    if stmt.extent <= room:
        return replace(stmt, kind=LoopKind.UNROLL)
    divisors = [steps for steps in range(2, room + 1) if stmt.extent % steps == 0]
    if not divisors:
        return None
    # Steps in fours first: four elements of float32 are one load of 16 bytes.
    steps = max(divisors, key=lambda steps: (steps % _READ_AT_ONCE == 0, steps))
    inner = Var(f"{stmt.var.name}.step")
    mapping: dict[Expr, Expr] = {stmt.var: stmt.var * steps + inner}
    body = map_exprs(stmt.body, lambda expr: substitute(expr, mapping))
    return replace(stmt, extent=stmt.extent // steps, body=For(inner, steps, LoopKind.UNROLL, body))


def _sums_alone(stmt: Stmt) -> bool:
    """Whether a statement consists of sums in a thread's own buffers, and unrolled loops."""
    for inner in walk_stmt(stmt):
        match inner:
            case For(kind=LoopKind.UNROLL) | If() | Let():
                continue
            case Store() if _is_sum(inner):
                continue
        return False
    return True


def _steps_in(stmt: Stmt) -> int:
    """Steps of the sums in a statement that are unrolled already."""
    loops, leaf = perfect_nest(stmt, *_PLAIN)
    written = variables(*(index for _, indices, writes in accesses_of(leaf) if writes for index in indices))
    return prod(loop.extent for loop in loops if loop.var not in written)
