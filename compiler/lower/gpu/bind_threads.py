"""In: a kernel with loops over blocks and threads. Out: its body as one thread runs it, and how many of them there are.

Always: every element that threads share is written by one thread. A loop over fewer turns than there are threads gets a
guard; what stands in no loop over threads is written to shared or global memory by the first thread alone, to its own
memory by each.

    before: shared s[4]: threadIdx.x t in 4: s[t] = x[t]            after: if threadIdx.x < 4: s[threadIdx.x] = x[…]
            threadIdx.x i in 32: y[i] = s[i % 4]                           y[threadIdx.x] = s[threadIdx.x % 4]
"""

from collections.abc import Mapping
from dataclasses import replace

from compiler.ir.expr import Buffer, Expr
from compiler.ir.kernel import INDICES, Kernel
from compiler.ir.stmt import (
    BLOCK_KINDS,
    THREAD_KINDS,
    Allocate,
    Block,
    For,
    If,
    Let,
    LoopFunction,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    block,
    walk_stmt,
)
from compiler.ir.tensor_core import AsyncCopy, LoadMatrix, Mma
from compiler.ir.visit import substitute

_BOUND = (*BLOCK_KINDS, *THREAD_KINDS)
_Names = Mapping[Expr, Expr]


def bind_threads(function: LoopFunction) -> Kernel:
    """The kernel with as many blocks and threads as the longest loop over them has turns."""
    sizes = dict.fromkeys(_BOUND, 1)
    for stmt in walk_stmt(function.body):
        if isinstance(stmt, For) and stmt.kind in sizes:
            sizes[stmt.kind] = max(sizes[stmt.kind], stmt.extent)
    body = _Binder(sizes).visit(function.body, {}, (), {})
    grid, threads = (tuple(sizes[kind] for kind in kinds) for kinds in (BLOCK_KINDS, THREAD_KINDS))
    return Kernel(replace(function, body=body), (grid[0], grid[1], grid[2]), (threads[0], threads[1], threads[2]))


class _Binder:
    """Replaces loops over blocks and threads. `path` are the dimensions bound around a statement, `homes` how many of
    them are bound around the allocation of a shared buffer.
    """

    def __init__(self, sizes: Mapping[LoopKind, int]) -> None:
        self.sizes = sizes

    def visit(self, stmt: Stmt, names: _Names, path: tuple[LoopKind, ...], homes: Mapping[Buffer, int]) -> Stmt:
        match stmt:
            case Block():
                return block(*(self.visit(inner, names, path, homes) for inner in stmt.statements))
            case For() if stmt.kind in self.sizes:
                index = INDICES[stmt.kind]
                body = self.visit(stmt.body, {**names, stmt.var: index}, (*path, stmt.kind), homes)
                return body if stmt.extent == self.sizes[stmt.kind] else If(index < stmt.extent, body)
            case For():
                return replace(stmt, body=self.visit(stmt.body, names, path, homes))
            case Let():
                value = substitute(stmt.value, names)
                return replace(stmt, value=value, body=self.visit(stmt.body, names, path, homes))
            case If():
                condition = substitute(stmt.condition, names)
                return replace(stmt, condition=condition, body=self.visit(stmt.body, names, path, homes))
            case Allocate():
                homes = {**homes, stmt.buffer: len(path)}
                return replace(stmt, body=self.visit(stmt.body, names, path, homes))
            case Store():
                return self.store(stmt, names, path, homes)
            case Shuffle():
                indices = tuple(substitute(index, names) for index in stmt.indices)
                return replace(stmt, indices=indices, value=substitute(stmt.value, names))
            case AsyncCopy():
                return self.alone(stmt.mapped(lambda expr: substitute(expr, names)), stmt.target, path, homes)
            case LoadMatrix() | Mma():
                return stmt.mapped(lambda expr: substitute(expr, names))
        return stmt

    def store(self, stmt: Store, names: _Names, path: tuple[LoopKind, ...], homes: Mapping[Buffer, int]) -> Stmt:
        """A write, by the first along every dimension that no loop around it runs over."""
        indices = tuple(substitute(index, names) for index in stmt.indices)
        written = replace(stmt, indices=indices, value=substitute(stmt.value, names))
        return written if stmt.buffer.scope in ("local", "register") else self.alone(written, stmt.buffer, path, homes)

    def alone(self, written: Stmt, buffer: Buffer, path: tuple[LoopKind, ...], homes: Mapping[Buffer, int]) -> Stmt:
        """A statement that writes what threads share, by the first along every dimension that is not bound."""
        shared = buffer.scope == "shared"
        bound = path[homes[buffer] :] if shared else path
        for kind in reversed(THREAD_KINDS if shared else _BOUND):
            if self.sizes[kind] > 1 and kind not in bound:
                written = If(INDICES[kind] < 1, written)
        return written
