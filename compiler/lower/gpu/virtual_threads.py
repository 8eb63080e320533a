"""Virtual threads: each thread does the work of all its virtual threads.

Statements that do not depend on the virtual thread run once. The others run for all virtual threads, statement by
statement, so that they stay in step and reach the same barriers.

    before: vthread v in 2: threadIdx.x t in 32: local c[4]: for i in 4: c[i] = a[v, t, i]
    after:  threadIdx.x t in 32: local c[2, 4]: for i in 4: unroll v in 2: c[v, i] = a[v, t, i]
"""

from dataclasses import dataclass, replace

from retune.compiler.ir.expr import Buffer, Expr, Var
from retune.compiler.ir.rewrite import accesses_of, find_stmts, rewrite, rewrite_down
from retune.compiler.ir.stmt import (
    Allocate,
    For,
    Let,
    LoopFunction,
    LoopKind,
    Stmt,
    exprs_of,
    inner_stmts,
    map_exprs,
    map_inner,
)
from retune.compiler.ir.visit import substitute, uses
from retune.compiler.lower.gpu.software_pipelining import copies_of, select_copy


def expand_virtual_threads(function: LoopFunction) -> LoopFunction:
    """Give every thread the buffers and the work of its virtual threads."""
    return replace(function, body=rewrite(function.body, {For: _expand}))


def _expand(loop: For) -> Stmt | None:
    if loop.kind is not LoopKind.VTHREAD:
        return None
    # A `let` names one value, but every virtual thread needs its own.
    body = _without_lets(loop.body, loop.var)
    return _Expansion(loop.var, loop.extent, _dependent_buffers(body, loop.var)).visit(body)


def _without_lets(stmt: Stmt, var: Var) -> Stmt:
    """The statement with every `let` that depends on `var` written out."""

    def on_let(let: Let, _: object) -> Stmt | None:
        if not uses(let.value, var):
            return None
        mapping: dict[Expr, Expr] = {let.var: let.value}
        return _without_lets(map_exprs(let.body, lambda expr: substitute(expr, mapping)), var)

    return rewrite_down(stmt, {Let: on_let})


def _dependent_buffers(body: Stmt, var: Var) -> frozenset[Buffer]:
    """The buffers allocated in `body` whose contents depend on the virtual thread."""
    local = {stmt.buffer for stmt in find_stmts(Allocate, body)}
    dependent: frozenset[Buffer] = frozenset()
    # Least fixed point: dependence spreads from reads to writes, and the set only grows.
    while True:
        more = frozenset(_dependent_writes(body, var, dependent) & local)
        if more == dependent:
            return dependent
        dependent = more


def _dependent_writes(stmt: Stmt, var: Var, dependent: frozenset[Buffer], under: bool = False) -> set[Buffer]:
    """The buffers written with, or under, values that depend on `var` or on a buffer in `dependent`."""
    depends = under or _depends(stmt, var, dependent)
    written_buffers = {buffer for buffer, _, written in accesses_of(stmt) if written and depends}
    return written_buffers.union(*(_dependent_writes(inner, var, dependent, depends) for inner in inner_stmts(stmt)))


def _depends(stmt: Stmt, var: Var, dependent: frozenset[Buffer]) -> bool:
    """Whether an expression of `stmt`, not of the statements inside, depends on the virtual thread."""
    if any(uses(expr, var) for expr in exprs_of(stmt)):
        return True
    return any(buffer in dependent and not written for buffer, _, written in accesses_of(stmt))


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Puts loops over virtual threads `var` around what depends on them, with parts of the `dependent` buffers."""

    var: Var
    extent: int
    dependent: frozenset[Buffer]

    def visit(self, stmt: Stmt) -> Stmt:
        accessed = {buffer for buffer, _, _ in accesses_of(stmt)}
        if _depends(stmt, self.var, self.dependent) or not accessed.isdisjoint(self.dependent):
            # Each virtual thread has a copy of these buffers.
            own = rewrite(select_copy(stmt, self.dependent, self.var, self.extent), {Allocate: self.own_buffer})
            return For(self.var, self.extent, LoopKind.UNROLL, own)
        match stmt:
            case Allocate():
                stmt = self.own_buffer(stmt)
        return map_inner(stmt, self.visit)

    def own_buffer(self, stmt: Allocate) -> Allocate:
        return replace(stmt, buffer=copies_of(stmt.buffer, self.extent)) if stmt.buffer in self.dependent else stmt
