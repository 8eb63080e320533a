"""Unroll the loops over small local buffers: with literal indices the compiler can keep them in registers."""

from dataclasses import replace
from itertools import chain

import numpy as np

from retune.compiler.ir.expr import Buffer, Var
from retune.compiler.ir.rewrite import accesses_in, rewrite
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, Store
from retune.compiler.ir.visit import variables

# As `SMALL_BUFFER_BYTES` of code generation: all but one of AVX-512's registers.
MAX_VECTORS = 31


def unroll_locals(function: LoopFunction, vector_bytes: int) -> LoopFunction:
    """Unroll serial loops that only move through a local buffer of at most `MAX_VECTORS` vectors."""

    def on_allocate(stmt: Allocate) -> Stmt | None:
        if stmt.buffer.scope != "local" or stmt.buffer.nbytes > MAX_VECTORS * vector_bytes:
            return None
        used = _index_vars(stmt.body, stmt.buffer)

        def unroll(loop: For) -> Stmt | None:
            small = loop.kind is LoopKind.SERIAL and _work(loop, used, vector_bytes) <= MAX_VECTORS
            return replace(loop, kind=LoopKind.UNROLL) if small else None

        return replace(stmt, body=rewrite(stmt.body, {For: unroll}))

    return replace(function, body=rewrite(function.body, {Allocate: on_allocate}))


def _work(loop: For, used: set[Var], vector_bytes: int) -> float:
    """Vector operations when fully unrolled; infinite when anything but the buffer's own loops is inside."""
    if loop.var not in used:
        return np.inf
    inner = loop.body
    # An estimate, in elements of four bytes.
    vectors = loop.extent if loop.kind is not LoopKind.VECTOR else -(-loop.extent * 4 // vector_bytes)
    match inner:
        case For():
            return vectors * _work(inner, used, vector_bytes)
        case Store():
            return vectors
    return np.inf


def _index_vars(body: Stmt, buffer: Buffer) -> set[Var]:
    indices = (indices for accessed, indices, _ in accesses_in(body) if accessed == buffer)
    return variables(*chain.from_iterable(indices))
