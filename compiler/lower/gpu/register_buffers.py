"""In: a kernel whose threads have small buffers of their own. Out: one where the loops over these are written out.

Always: every access of such a buffer has literal indices then, so that it can live in registers; a thread has no other
memory that is fast. What is too large for registers, or would make too much code, stays a loop. Loops around the
statements of a stage that has an unroll limit are written out too, from the innermost on, as long as that keeps it.

    before: local c[4]: for k in 8: for i in 4: c[i] = c[i] + a[k, i]
    after:  local c[4]: for k in 8: unroll i in 4: c[i] = c[i] + a[k, i]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Buffer, Expr, Load, Var
from retune.compiler.ir.stmt import (
    LEAVES,
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
    map_stmt,
    walk_stmt,
)
from retune.compiler.ir.tensor_core import TENSOR_STMTS, accesses
from retune.compiler.ir.visit import walk

MOST_BYTES = 4 * 255
"""A thread has no more registers."""

MOST_STATEMENTS = 4096
"""Beyond that the code leaves the instruction cache, and takes seconds to compile."""


@dataclass(frozen=True, slots=True)
class RegisterBuffers:
    """Unrolls the serial loops that a thread's small buffers are indexed by, and those within the stages' limits."""

    name: str = "register-buffers"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with those loops unrolled."""
        body, limits = map_stmt(function.body, _unrolled), dict(function.unroll_limits)
        within = map_stmt(body, lambda stmt: _within(stmt, limits))
        return replace(function, body=within if copies_of(within) <= MOST_STATEMENTS else body)


def _unrolled(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Allocate) or stmt.buffer.scope != "local" or stmt.buffer.nbytes > MOST_BYTES:
        return None
    moving = _index_vars(stmt.body, stmt.buffer)

    def rule(node: Stmt) -> Stmt | None:
        mine = isinstance(node, For) and node.kind is LoopKind.SERIAL and node.var in moving
        return replace(node, kind=LoopKind.UNROLL) if isinstance(node, For) and mine else None

    body = map_stmt(stmt.body, rule)
    return replace(stmt, body=body) if copies_of(body) <= MOST_STATEMENTS else None


def _within(stmt: Stmt, limits: Mapping[str, int]) -> Stmt | None:
    """A serial loop written out if all that it writes is of stages whose limits allow for as many statements."""
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.SERIAL:
        return None
    written = {inner.buffer.name for inner in walk_stmt(stmt.body) if isinstance(inner, Store)}
    limit = min((limits.get(name, 0) for name in written), default=0)
    return replace(stmt, kind=LoopKind.UNROLL) if stmt.extent * copies_of(stmt.body) <= limit else None


def _index_vars(body: Stmt, buffer: Buffer) -> set[Var]:
    """The variables that the place of an access depends on, with those that they are computed from."""
    found: set[Var] = set()
    for indices in _accesses(body, buffer):
        for atom in flat_index(buffer.shape, indices).terms:
            found |= {node for node in walk(atom) if isinstance(node, Var)}
    named = [stmt for stmt in walk_stmt(body) if isinstance(stmt, Let)]
    for stmt in reversed(named):  # one inside another may be named after it
        if stmt.var in found:
            found |= {node for node in walk(stmt.value) if isinstance(node, Var)}
    return found


def _accesses(body: Stmt, buffer: Buffer) -> Iterator[tuple[Expr, ...]]:
    for stmt in walk_stmt(body):
        if isinstance(stmt, (Store, Shuffle)) and stmt.buffer == buffer:
            yield stmt.indices
        if isinstance(stmt, TENSOR_STMTS):
            yield from (indices for touched, indices, _, _ in accesses(stmt) if touched == buffer)
        for expr in exprs_of(stmt):
            for node in walk(expr):
                if isinstance(node, Load) and node.buffer == buffer:
                    yield node.indices


def copies_of(stmt: Stmt) -> int:
    """How many statements there are when all unrolled loops are written out."""
    if isinstance(stmt, LEAVES):
        return 1
    turns = stmt.extent if isinstance(stmt, For) and stmt.kind is LoopKind.UNROLL else 1
    return turns * sum(copies_of(inner) for inner in inner_stmts(stmt))
