"""In: a kernel whose loops wait for their copies in every turn. Out: one that starts them some turns before.

Always: a turn reads what was copied for it and nothing else; every copy of a buffer has its own wait and its own
barrier, so that no other barriers are needed for it.

    before: for k in 9: shared s[8]: copy s = x[k]; commit; wait but 0; y += s
    after:  shared s[2, 8]: copy s[0] = x[0]; commit; for k in 9: wait but 0; barrier; if k + 1 < 9: copy s[(k + 1) % 2]
            = x[k + 1]; commit; y += s[k % 2]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.errors import LoweringError
from compiler.ir.expr import Buffer, Expr, Load, const
from compiler.ir.stmt import (
    Allocate,
    Barrier,
    Block,
    For,
    If,
    LoopFunction,
    Stmt,
    Store,
    block,
    map_exprs,
    map_stmt,
)
from compiler.ir.tensor_core import AsyncCopy, CommitGroup, LoadMatrix, WaitGroup
from compiler.ir.visit import substitute, transform


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Gives the shared buffers of a pipelined loop a copy for every turn that is under way or at hand."""

    name: str = "pipelines"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with its copies ahead of their turns; a loop without copies stays as it is."""
        depths = dict(function.pipelines)
        if not depths:
            return function

        def ahead(stmt: Stmt) -> Stmt | None:
            if not isinstance(stmt, For) or depths.get(stmt.var.name, 1) == 1:
                return None
            return _pipelined(stmt, min(depths[stmt.var.name], stmt.extent))

        return replace(function, body=map_stmt(function.body, ahead))


def _pipelined(loop: For, depth: int) -> Stmt | None:
    buffers: list[Buffer] = []
    body = loop.body
    while isinstance(body, Allocate) and body.buffer.scope == "shared":
        buffers.append(body.buffer)
        body = body.body
    parts = body.statements if isinstance(body, Block) else (body,)
    waits = [number for number, part in enumerate(parts) if isinstance(part, WaitGroup)]
    if not waits or depth < 2:
        return None
    if any(isinstance(part, Allocate) and part.buffer.scope == "shared" for part in parts):
        raise LoweringError(f"{loop.var}: shared buffers of a pipelined loop must be those of all its statements")
    copies, compute = block(*parts[: waits[0] - 1]), block(*parts[waits[0] + 1 :])

    def start(turn: Expr, slot: Expr) -> Stmt:
        moved = map_exprs(copies, lambda expr: substitute(expr, {loop.var: turn}))
        return _in_slot(moved, buffers, slot, depth)

    first: list[Stmt] = []
    for turn in range(depth - 1):
        first.extend((start(const(turn), const(turn)), CommitGroup()))
    later = loop.var + (depth - 1)
    turns = block(
        WaitGroup(depth - 2),
        Barrier(),
        If(later < loop.extent, start(later, later % depth)),
        CommitGroup(),
        _in_slot(compute, buffers, loop.var % depth, depth),
    )
    stmt = block(*first, replace(loop, body=turns))
    for buffer in reversed(buffers):
        stmt = Allocate(_copies_of(buffer, depth), stmt)
    return stmt


def _copies_of(buffer: Buffer, depth: int) -> Buffer:
    return replace(buffer, shape=(depth, *buffer.shape))


def _in_slot(stmt: Stmt, buffers: Sequence[Buffer], slot: Expr, depth: int) -> Stmt:
    """The statement with the copy number `slot` of the buffers."""

    def on_expr(expr: Expr) -> Expr:
        return transform(expr, lambda node: _slotted_load(node) if isinstance(node, Load) else None)

    def _slotted_load(node: Load) -> Expr | None:
        return Load(_copies_of(node.buffer, depth), (slot, *node.indices)) if node.buffer in buffers else None

    def on_stmt(node: Stmt) -> Stmt | None:
        match node:
            case Store() if node.buffer in buffers:
                return replace(node, buffer=_copies_of(node.buffer, depth), indices=(slot, *node.indices))
            case AsyncCopy() if node.target in buffers:
                return replace(node, target=_copies_of(node.target, depth), indices=(slot, *node.indices))
            case LoadMatrix() if node.source in buffers:
                places = (slot, *node.source_indices)
                return replace(node, source=_copies_of(node.source, depth), source_indices=places)
        return None

    return map_stmt(map_exprs(stmt, on_expr), on_stmt)
