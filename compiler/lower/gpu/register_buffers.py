"""Unroll the loops over the small buffers of a thread, so that these buffers are in registers.

Every access of such a buffer then has literal indices; a thread has no other fast memory. Loops over buffers too large
for registers, or with too much code, stay loops. Loops around the statements of a stage with an unroll limit are
unrolled too, from the innermost on, within the limit.

    before: local c[4]: for k in 8: for i in 4: c[i] = c[i] + a[k, i]
    after:  local c[4]: for k in 8: unroll i in 4: c[i] = c[i] + a[k, i]
"""

from collections.abc import Mapping
from dataclasses import replace

from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Buffer, Var
from retune.compiler.ir.rewrite import accesses_in, find_stmts, rewrite, unrolled_size
from retune.compiler.ir.stmt import Allocate, For, Let, LoopFunction, LoopKind, Stmt, Store
from retune.compiler.ir.visit import variables

MOST_BYTES = 4 * 255
"""All registers of a thread."""

MOST_STATEMENTS = 4096
"""More code leaves the instruction cache, and takes seconds to compile."""


def unroll_register_buffers(function: LoopFunction) -> LoopFunction:
    """Unroll the serial loops that index a thread's small buffers, and those within the stages' limits."""
    limits = dict(function.unroll_limits)
    body = rewrite(function.body, {Allocate: _unroll_loops_over})
    within = rewrite(body, {For: lambda loop: _unroll_within(loop, limits)})
    return replace(function, body=within if unrolled_size(within) <= MOST_STATEMENTS else body)


def _unroll_loops_over(stmt: Allocate) -> Stmt | None:
    if stmt.buffer.scope != "local" or stmt.buffer.nbytes > MOST_BYTES:
        return None
    moving = _index_vars(stmt.body, stmt.buffer)

    def rule(loop: For) -> Stmt | None:
        unrolls = loop.kind is LoopKind.SERIAL and loop.var in moving
        return replace(loop, kind=LoopKind.UNROLL) if unrolls else None

    body = rewrite(stmt.body, {For: rule})
    return replace(stmt, body=body) if unrolled_size(body) <= MOST_STATEMENTS else None


def _unroll_within(loop: For, limits: Mapping[str, int]) -> Stmt | None:
    """A serial loop, unrolled if all stages that it writes have limits that allow it."""
    if loop.kind is not LoopKind.SERIAL:
        return None
    written = {store.buffer.name for store in find_stmts(Store, loop.body)}
    limit = min((limits.get(name, 0) for name in written), default=0)
    return replace(loop, kind=LoopKind.UNROLL) if loop.extent * unrolled_size(loop.body) <= limit else None


def _index_vars(body: Stmt, buffer: Buffer) -> set[Var]:
    """The variables that the flat index of an access depends on, with those of their `let` values."""
    index_vars: set[Var] = set()
    for accessed, indices, _ in accesses_in(body):
        if accessed == buffer:
            index_vars |= variables(*flat_index(buffer.shape, indices).terms)
    for let in reversed(list(find_stmts(Let, body))):  # an inner `let` may be defined by it
        if let.var in index_vars:
            index_vars |= variables(let.value)
    return index_vars
