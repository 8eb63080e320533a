"""Move local buffers that are too large for the stack into the workspace, one copy per parallel iteration.

before: parallel i: local a[100000]; … a[j] …
after:  parallel i: … a.large[i, j] …;   workspace a.large[4, 100000]
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from retune.compiler.ir.expr import Buffer, Expr
from retune.compiler.ir.rewrite import find_stmts, redirect, rewrite
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, map_outermost

_MARGIN = 16 << 10
"""Bytes of the stack that later passes and LLVM may use."""
_MOST_BYTES = 64 << 20
"""The largest workspace that one local buffer may become."""


def move_locals(function: LoopFunction, stack_bytes: int) -> LoopFunction:
    """Move the largest local buffers into the workspace, as far as it may hold them, until the others fit the
    `stack_bytes` of a thread.
    """
    moved: dict[str, Buffer] = {}

    def move(part: Stmt) -> Stmt:
        targets = dict(_targets(part, stack_bytes))
        moved.update((buffer.name, large) for buffer, (large, _) in targets.items())
        return _move(part, targets) if targets else part

    body = map_outermost(function.body, move)
    if not moved:
        return function
    limits = ((moved[name].name, limit) for name, limit in function.unroll_limits if name in moved)
    return replace(
        function,
        workspace=(*function.workspace, *moved.values()),
        body=body,
        unroll_limits=(*function.unroll_limits, *limits),
    )


def _targets(part: Stmt, stack_bytes: int) -> Iterator[tuple[Buffer, tuple[Buffer, tuple[Expr, ...]]]]:
    """The buffers of one statement that move, each with its buffer in the workspace and the first indices there."""
    # Threads divide only the iterations of an outermost parallel loop.
    loops: Sequence[For] = (part,) if isinstance(part, For) and part.kind is LoopKind.PARALLEL else ()
    buffers = [scope.buffer for scope in find_stmts(Allocate, part) if scope.buffer.scope == "local"]
    remaining = sum(buffer.nbytes for buffer in buffers)
    for buffer in sorted(buffers, key=lambda buffer: -buffer.nbytes):
        shape = (*(loop.extent for loop in loops), *buffer.shape)
        large = Buffer(f"{buffer.name}.large", shape, buffer.dtype, "workspace")
        if remaining > stack_bytes - _MARGIN and large.nbytes <= _MOST_BYTES:
            remaining -= buffer.nbytes
            yield buffer, (large, tuple(loop.var for loop in loops))


def _move(part: Stmt, targets: dict[Buffer, tuple[Buffer, tuple[Expr, ...]]]) -> Stmt:
    def move(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]] | None:
        if buffer not in targets:
            return None
        large, first = targets[buffer]
        return large, (*first, *indices)

    return redirect(rewrite(part, {Allocate: lambda scope: scope.body if scope.buffer in targets else None}), move)
