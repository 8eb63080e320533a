"""In: a kernel with loops over virtual threads. Out: one where each thread does the work of all its virtual ones.

Always: what does not depend on the virtual thread is done once, what does is done for all of them one after the other
at every statement, so that they stay in step and meet at the same barriers.

    before: vthread v in 2: threadIdx.x t in 32: local c[4]: for i in 4: c[i] = a[v, t, i]
    after:  threadIdx.x t in 32: local c[2, 4]: for i in 4: unroll v in 2: c[v, i] = a[v, t, i]
"""

from dataclasses import dataclass, replace

from retune.compiler.ir.expr import Buffer, Expr, Load, Var
from retune.compiler.ir.stmt import (
    Allocate,
    For,
    Let,
    LoopFunction,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    exprs_of,
    inner_stmts,
    map_exprs,
    map_inner,
    map_stmt,
    walk_stmt,
)
from retune.compiler.ir.visit import substitute, transform, walk


@dataclass(frozen=True, slots=True)
class VirtualThreads:
    """Gives every thread the buffers and the work of its virtual threads."""

    name: str = "virtual-threads"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel without loops over virtual threads."""
        return replace(function, body=map_stmt(function.body, _expanded))


def _expanded(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.VTHREAD:
        return None
    body = _without_lets(stmt.body, stmt.var)
    return _Expansion(stmt.var, stmt.extent, _touched(body, stmt.var)).visit(body)


def _without_lets(stmt: Stmt, var: Var) -> Stmt:
    """The statement with everything that is named after `var` written out."""
    if isinstance(stmt, Let) and var in walk(stmt.value):
        known: dict[Expr, Expr] = {stmt.var: stmt.value}
        return _without_lets(map_exprs(stmt.body, lambda expr: substitute(expr, known)), var)
    return map_inner(stmt, lambda inner: _without_lets(inner, var))


def _touched(body: Stmt, var: Var) -> frozenset[Buffer]:
    """The buffers allocated in `body` whose contents depend on the virtual thread."""
    allocated = {stmt.buffer for stmt in walk_stmt(body) if isinstance(stmt, Allocate)}
    found: frozenset[Buffer] = frozenset()
    while True:
        more = frozenset(buffer for buffer in _written(body, var, found) if buffer in allocated)
        if more == found:
            return found
        found = more


def _written(stmt: Stmt, var: Var, touched: frozenset[Buffer], under: bool = False) -> set[Buffer]:
    """What is written with, or where, something depends on `var` or on what is in `touched`."""
    depends = under or any(_depends(expr, var, touched) for expr in exprs_of(stmt))
    if isinstance(stmt, (Store, Shuffle)):
        return {stmt.buffer} if depends else set()
    return {buffer for inner in inner_stmts(stmt) for buffer in _written(inner, var, touched, depends)}


def _depends(expr: Expr, var: Var, touched: frozenset[Buffer]) -> bool:
    return any(node == var or (isinstance(node, Load) and node.buffer in touched) for node in walk(expr))


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Puts the virtual threads `var` around what depends on them, each with its own part of the `touched` buffers."""

    var: Var
    extent: int
    touched: frozenset[Buffer]

    def visit(self, stmt: Stmt) -> Stmt:
        if any(_depends(expr, self.var, self.touched) for expr in exprs_of(stmt)) or (
            isinstance(stmt, (Store, Shuffle)) and stmt.buffer in self.touched
        ):
            return For(self.var, self.extent, LoopKind.UNROLL, map_stmt(map_exprs(stmt, self.expr), self.own))
        if isinstance(stmt, Allocate):
            stmt = replace(stmt, buffer=self.buffer(stmt.buffer))
        return map_inner(stmt, self.visit)

    def buffer(self, buffer: Buffer) -> Buffer:
        """A touched buffer with a part for every virtual thread."""
        return replace(buffer, shape=(self.extent, *buffer.shape)) if buffer in self.touched else buffer

    def own(self, stmt: Stmt) -> Stmt | None:
        """A statement with the part of its buffer that is the virtual thread's own."""
        if isinstance(stmt, (Store, Shuffle)) and stmt.buffer in self.touched:
            return replace(stmt, buffer=self.buffer(stmt.buffer), indices=(self.var, *stmt.indices))
        return replace(stmt, buffer=self.buffer(stmt.buffer)) if isinstance(stmt, Allocate) else None

    def expr(self, expr: Expr) -> Expr:
        """An expression that reads from the virtual thread's own part."""

        def rule(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.buffer in self.touched:
                return Load(self.buffer(node.buffer), (self.var, *node.indices))
            return None

        return transform(expr, rule)
