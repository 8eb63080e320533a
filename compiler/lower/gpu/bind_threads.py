"""Bind loops to blocks and threads: the body of a kernel as one thread runs it, and the sizes of its launch.

Every shared element is written by one thread. A loop shorter than the block has threads gets a guard. Statements
outside loops over threads write shared or global memory by the first thread alone, and local memory by each.

    before: shared s[4]: threadIdx.x t in 4: s[t] = x[t]            after: if threadIdx.x < 4: s[threadIdx.x] = x[…]
            threadIdx.x i in 32: y[i] = s[i % 4]                           y[threadIdx.x] = s[threadIdx.x % 4]
"""

from collections.abc import Mapping
from dataclasses import replace

from retune.compiler.ir.expr import Buffer, Expr
from retune.compiler.ir.kernel import INDICES, Kernel
from retune.compiler.ir.rewrite import find_stmts
from retune.compiler.ir.stmt import (
    BLOCK_KINDS,
    THREAD_KINDS,
    Allocate,
    For,
    If,
    LoopFunction,
    LoopKind,
    Stmt,
    Store,
    map_inner,
    map_own,
)
from retune.compiler.ir.tensor_core import AsyncCopy
from retune.compiler.ir.visit import substitute

_BOUND = (*BLOCK_KINDS, *THREAD_KINDS)
_Names = Mapping[Expr, Expr]


def bind_threads(function: LoopFunction) -> Kernel:
    """The kernel with as many blocks and threads as the longest loop over them has iterations."""
    sizes = dict.fromkeys(_BOUND, 1)
    for loop in find_stmts(For, function.body):
        if loop.kind in sizes:
            sizes[loop.kind] = max(sizes[loop.kind], loop.extent)
    body = _Binder(sizes).visit(function.body, {}, (), {})
    grid, threads = (tuple(sizes[kind] for kind in kinds) for kinds in (BLOCK_KINDS, THREAD_KINDS))
    return Kernel(replace(function, body=body), (grid[0], grid[1], grid[2]), (threads[0], threads[1], threads[2]))


class _Binder:
    """Replaces loops over blocks and threads. `path` are the dimensions bound around a statement, `homes` the number of
    them around the allocation of each shared buffer.
    """

    def __init__(self, sizes: Mapping[LoopKind, int]) -> None:
        self.sizes = sizes

    def visit(self, stmt: Stmt, names: _Names, path: tuple[LoopKind, ...], homes: Mapping[Buffer, int]) -> Stmt:
        match stmt:
            case For(kind=kind) if kind in self.sizes:
                index = INDICES[kind]
                body = self.visit(stmt.body, {**names, stmt.var: index}, (*path, kind), homes)
                # The longest loop along a dimension gives its size; in shorter loops the other threads idle.
                return body if stmt.extent == self.sizes[kind] else If(index < stmt.extent, body)
            case Allocate(buffer=buffer):
                homes = {**homes, buffer: len(path)}
        renamed = map_own(stmt, lambda expr: substitute(expr, names))
        match renamed:
            case Store(buffer=buffer) if buffer.scope not in ("local", "register"):
                return self.alone(renamed, buffer, path, homes)
            case AsyncCopy():
                return self.alone(renamed, renamed.target, path, homes)
        return map_inner(renamed, lambda inner: self.visit(inner, names, path, homes))

    def alone(self, written: Stmt, buffer: Buffer, path: tuple[LoopKind, ...], homes: Mapping[Buffer, int]) -> Stmt:
        """A statement that writes shared memory, executed by the first thread along every unbound dimension."""
        shared = buffer.scope == "shared"
        # A block has the buffer once: only loops inside its allocation divide its elements.
        bound = path[homes[buffer] :] if shared else path
        for kind in reversed(THREAD_KINDS if shared else _BOUND):
            if self.sizes[kind] > 1 and kind not in bound:
                written = If(INDICES[kind] < 1, written)
        return written
