"""In: a kernel whose loops wait for their copies in every turn. Out: one that starts them some turns before.

Always: a turn reads what was copied for it and nothing else; every copy of a buffer has its own wait and its own
barrier, so that no other barriers are needed for it.

    before: for k in 9: shared s[8]: copy s = x[k]; commit; wait but 0; y += s
    after:  shared s[2, 8]: copy s[0] = x[0]; commit; for k in 9: wait but 0; barrier; if k + 1 < 9: copy s[(k + 1) % 2]
            = x[k + 1]; commit; y += s[k % 2]
"""

from dataclasses import dataclass, replace

from retune.compiler.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Expr, const
from retune.compiler.ir.stmt import (
    Allocate,
    Barrier,
    Block,
    For,
    If,
    LoopFunction,
    Stmt,
    block,
    map_exprs,
    map_stmt,
)
from retune.compiler.ir.tensor_core import CommitGroup, WaitGroup
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.slots import copies_of, in_slot


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
        return in_slot(moved, buffers, slot, depth)

    first: list[Stmt] = []
    for turn in range(depth - 1):
        first.extend((start(const(turn), const(turn)), CommitGroup()))
    later = loop.var + (depth - 1)
    turns = block(
        WaitGroup(depth - 2),
        Barrier(),
        If(later < loop.extent, start(later, later % depth)),
        CommitGroup(),
        in_slot(compute, buffers, loop.var % depth, depth),
    )
    stmt = block(*first, replace(loop, body=turns))
    for buffer in reversed(buffers):
        stmt = Allocate(copies_of(buffer, depth), stmt)
    return stmt
