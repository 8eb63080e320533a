"""Software pipelining of asynchronous copies: main (K) loops start the copies of later iterations.

An iteration reads only what was copied for it. Every copy of a buffer has its own wait and its own barrier, so that it
needs no other barriers.

Warpgroups multiply asynchronously too: an iteration starts its multiplication and then copies into the tile of the
previous iteration, for which it has waited; with four tiles or more that multiplication is still in flight, and it
copies into the tile of the iteration before that.

    before: for k in 9: shared s[8]: copy s = x[k]; commit; wait but 0; y += s
    after:  shared s[2, 8]: copy s[0] = x[0]; commit; for k in 9: wait but 0; barrier; if k + 1 < 9: copy s[(k + 1) % 2]
            = x[k + 1]; commit; y += s[k % 2]
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Expr, const
from retune.compiler.ir.rewrite import allocate, peel_allocations, redirect, rewrite, statements_of
from retune.compiler.ir.stmt import Barrier, For, If, LoopFunction, Stmt, block, map_exprs
from retune.compiler.ir.tensor_core import CommitGroup, Exprs, ProxyFence, WaitGroup, WarpgroupMma, WarpgroupWait
from retune.compiler.ir.visit import substitute
from retune.compiler.schedule.tensor_nests import TILES_WITHOUT_BREAK


def pipeline_loops(function: LoopFunction) -> LoopFunction:
    """Copy ahead of the iterations that read the copies: the shared memory of a pipelined loop has one copy for each
    iteration in flight. Loops without copies are unchanged.
    """
    depths = dict(function.pipelines)
    if not depths:
        return function

    def pipeline(loop: For) -> Stmt | None:
        # More copies than iterations would never be read.
        return _pipeline(loop, min(depths.get(loop.var.name, 1), loop.extent))

    return replace(function, body=rewrite(function.body, {For: pipeline}))


def _pipeline(loop: For, depth: int) -> Stmt | None:
    buffers, body = peel_allocations(loop.body, "shared")
    parts = statements_of(body)
    waits = [number for number, part in enumerate(parts) if type(part) is WaitGroup]
    if not waits or depth < 2:
        return None
    if any(peel_allocations(part, "shared")[0] for part in parts):
        raise LoweringError(f"{loop.var}: shared buffers of a pipelined loop must be those of all its statements")
    copies, compute = block(*parts[: waits[0] - 1]), block(*parts[waits[0] + 1 :])

    def start(number: Expr, copy: Expr) -> Stmt:
        moved = map_exprs(copies, lambda expr: substitute(expr, {loop.var: number}))
        return select_copy(moved, buffers, copy, depth)

    several = [copies_of(buffer, depth) for buffer in buffers]
    match parts[waits[0] + 1 :]:
        case [*fences, WarpgroupMma() as multiply, WarpgroupWait(pending=0) as done] if all(
            isinstance(each, ProxyFence) for each in fences
        ):
            multiplied = select_copy(multiply, buffers, loop.var % depth, depth)
            return allocate(several, _of_warpgroups(loop, depth, start, fences, multiplied, done))
    first: list[Stmt] = []
    # The prologue: copies of the first depth - 1 iterations are in flight before the loop begins.
    for number in range(depth - 1):
        first.extend((start(const(number), const(number)), CommitGroup()))
    later = loop.var + (depth - 1)
    iteration = block(
        # Groups complete in order: with depth - 1 in flight, all but depth - 2 done means this iteration's copy is
        # done.
        WaitGroup(depth - 2),
        # A thread waits only for its own copies: the barrier makes all copies visible, and keeps the tile that is
        # overwritten next from threads that still read it.
        Barrier(),
        # An empty group is committed at the end of the loop, so that the number to wait for stays the same.
        If(later < loop.extent, start(later, later % depth)),
        CommitGroup(),
        select_copy(compute, buffers, loop.var % depth, depth),
    )
    return allocate(several, block(*first, replace(loop, body=iteration)))


def _of_warpgroups(
    loop: For,
    depth: int,
    start: Callable[[Expr, Expr], Stmt],
    fences: Sequence[Stmt],
    multiply: Stmt,
    done: WarpgroupWait,
) -> Stmt:
    """A loop over tiles that warpgroups multiply; `start` starts the copies of an iteration into a tile."""
    # With one multiplication in flight the tensor cores go on while threads wait for each other. But its tile cannot be
    # overwritten meanwhile: with fewer tiles only one could be copied at a time, which takes longer than multiplying.
    pending = 1 if depth >= TILES_WITHOUT_BREAK else 0
    ahead = depth - 1 - pending
    first: list[Stmt] = []
    for number in range(ahead):
        first.extend((start(const(number), const(number)), CommitGroup()))
    later = loop.var + ahead
    iteration = block(
        WaitGroup(ahead - 1),
        # Every thread fences its stores before the barrier, after which all of them are multiplied.
        *fences,
        # The tile that is copied into next has been multiplied, by all warpgroups after the barrier.
        replace(done, pending=pending),
        Barrier(),
        multiply,
        If(later < loop.extent, start(later, later % depth)),
        CommitGroup(),
    )
    return block(*first, replace(loop, body=iteration), done)


def copies_of(buffer: Buffer, count: int) -> Buffer:
    return replace(buffer, shape=(count, *buffer.shape))


def select_copy(stmt: Stmt, buffers: Collection[Buffer], copy: Expr, count: int) -> Stmt:
    """The statement with copy number `copy` of the `count` copies of each of the buffers."""

    def rule(buffer: Buffer, indices: Exprs) -> tuple[Buffer, Exprs] | None:
        return (copies_of(buffer, count), (copy, *indices)) if buffer in buffers else None

    return redirect(stmt, rule)
