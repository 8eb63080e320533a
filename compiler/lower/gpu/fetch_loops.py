"""Peel the last iteration of loops that fetch into shared memory, and unroll short loops.

Only the last iteration then tests which threads still have something to fetch, and the addresses of an unrolled loop
are computed before the loops around it. The same threads fetch the same elements.

    before: for n in 3: if n * 32 + threadIdx.x < 80: s[n * 32 + threadIdx.x] = x[n * 32 + threadIdx.x]
    after:  unroll n in 2: s[n * 32 + threadIdx.x] = x[n * 32 + threadIdx.x]
            if threadIdx.x < 16: s[64 + threadIdx.x] = x[64 + threadIdx.x]
"""

from dataclasses import replace
from functools import reduce

from retune.compiler.ir.expr import BinaryOp, Expr, Var, binary, const
from retune.compiler.ir.interval import Ranges, conjuncts, decide_condition
from retune.compiler.ir.kernel import Kernel
from retune.compiler.ir.rewrite import find_stmts, rewrite, rewrite_down, rewrite_inside, walk_in_scope
from retune.compiler.ir.stmt import For, If, Let, LoopKind, Stmt, Store, block, map_exprs, walk_stmt
from retune.compiler.ir.tensor_core import AsyncCopy
from retune.compiler.ir.visit import substitute, uses

_MOST_UNROLLED = 16
"""Longer loops are not unrolled: the addresses of their iterations would take the registers."""


def fetch_loops(kernel: Kernel) -> Kernel:
    """The kernel with the last iteration peeled off loops that fetch into shared memory, if only it needs a guard, and
    with short loops of these unrolled.
    """
    body = rewrite_down(kernel.body.body, {For: _peel}, kernel.ranges)
    return replace(kernel, body=replace(kernel.body, body=body))


def _peel(loop: For, ranges: Ranges) -> Stmt | None:
    if loop.kind is not LoopKind.SERIAL or loop.extent == 1 or not all(map(_fetches, walk_stmt(loop))):
        return None
    inner = any(each.kind is LoopKind.SERIAL for each in find_stmts(For, loop.body))
    unrolled = replace(loop, kind=LoopKind.UNROLL) if loop.extent <= _MOST_UNROLLED and not inner else loop
    # All iterations but the last: a guard that holds in each of them is dropped there.
    body = _drop_guards(loop.body, loop.var, {**ranges, loop.var: (0, loop.extent - 2)})
    if body is None or body is loop.body:
        return None if unrolled is loop else rewrite_inside(unrolled, {For: _peel}, ranges)
    last: dict[Expr, Expr] = {loop.var: const(loop.extent - 1)}
    return block(
        replace(unrolled, extent=loop.extent - 1, body=body), map_exprs(loop.body, lambda expr: substitute(expr, last))
    )


def _fetches(stmt: Stmt) -> bool:
    """Whether a statement writes shared memory, or is a loop or a guard."""
    match stmt:
        case Store(buffer=target) | AsyncCopy(target=target):
            return target.scope == "shared"
        case For() | If() | Let():
            return True
    return False


def _drop_guards(stmt: Stmt, var: Var, ranges: Ranges) -> Stmt | None:
    """The statement without the guards on `var`, which all hold; None where any may fail."""
    guards = [(part, inside) for guard, inside in walk_in_scope(stmt, ranges) for part in _conditions(guard)]
    named = [(part, inside) for part, inside in guards if uses(part, var)]
    if not all(decide_condition(part, inside) is True for part, inside in named):
        return None

    def on_guard(guard: If) -> Stmt | None:
        others = [part for part in conjuncts(guard.condition) if not uses(part, var)]
        return If(reduce(_both, others), guard.body) if others else guard.body

    return rewrite(stmt, {If: on_guard}) if named else stmt


def _conditions(stmt: Stmt) -> tuple[Expr, ...]:
    match stmt:
        case If(condition):
            return conjuncts(condition)
    return ()


def _both(lhs: Expr, rhs: Expr) -> Expr:
    return binary(BinaryOp.AND, lhs, rhs)
