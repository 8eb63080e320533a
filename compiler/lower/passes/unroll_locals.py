"""In: a kernel with small local buffers. Out: the loops over them unrolled.

Always: their indices become literals, so that the compiler can hold them in registers.
"""

from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.ir.expr import Buffer, Expr, Load, Var
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, Store, exprs_of, map_stmt, walk_stmt
from retune.compiler.ir.visit import walk

MAX_VECTORS = 31


@dataclass(frozen=True, slots=True)
class UnrollLocals:
    """Unrolls serial loops that only move through a local buffer of at most `MAX_VECTORS` vectors."""

    vector_bytes: int = 64
    name: str = "unroll-locals"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with those loops unrolled."""
        return replace(function, body=map_stmt(function.body, self._on_allocate))

    def _on_allocate(self, stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Allocate) or stmt.buffer.scope != "local":
            return None
        if stmt.buffer.nbytes > MAX_VECTORS * self.vector_bytes:
            return None
        used = _index_vars(stmt.body, stmt.buffer)

        def unroll(node: Stmt) -> Stmt | None:
            small = isinstance(node, For) and node.kind is LoopKind.SERIAL and self._work(node, used) <= MAX_VECTORS
            return replace(node, kind=LoopKind.UNROLL) if small and isinstance(node, For) else None

        return replace(stmt, body=map_stmt(stmt.body, unroll))

    def _work(self, loop: For, used: set[Var]) -> float:
        """Vector operations when unrolled whole; infinite when anything but the buffer's own loops is inside."""
        if loop.var not in used:
            return np.inf
        inner = loop.body
        turns = loop.extent if loop.kind is not LoopKind.VECTOR else -(-loop.extent * 4 // self.vector_bytes)
        match inner:
            case For():
                return turns * self._work(inner, used)
            case Store():
                return turns
        return np.inf


def _index_vars(body: Stmt, buffer: Buffer) -> set[Var]:
    found: set[Var] = set()

    def collect(indices: tuple[Expr, ...]) -> None:
        found.update(node for index in indices for node in walk(index) if isinstance(node, Var))

    for stmt in walk_stmt(body):
        if isinstance(stmt, Store) and stmt.buffer == buffer:
            collect(stmt.indices)
        for expr in exprs_of(stmt):
            for node in walk(expr):
                if isinstance(node, Load) and node.buffer == buffer:
                    collect(node.indices)
    return found
