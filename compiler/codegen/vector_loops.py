"""Plans vector loops: how many iterations at run time, and which vectors the remainder takes."""

from collections.abc import Iterator
from dataclasses import dataclass

from retune.compiler.codegen.types import item_bytes
from retune.compiler.codegen.values import Value
from retune.compiler.ir.expr import BOOL
from retune.compiler.ir.rewrite import accesses_in, find_stmts, has_stmt
from retune.compiler.ir.stmt import Allocate, For, Stmt
from retune.compiler.ir.visit import variables

# Independent vectors overlap the latency of their instructions, and share an increment and a branch.
CHUNKS_PER_ITERATION = 4
"""Vectors that an iteration of a long vector loop handles."""
# 31 of AVX-512's 32 registers of 64 bytes: the last is for an operand.
SMALL_BUFFER_BYTES = 31 * 64
"""Loops over a local buffer up to this size are unrolled, so that it can be in registers."""
MASKED_BYTES = 64
"""Registers at least this wide come with masks (AVX-512), so that a partial vector costs no more than a full vector."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`lanes` iterations of a vector loop from `offset` on; with a `mask` only the first `active` do anything."""

    offset: int
    lanes: int
    mask: Value | None = None
    active: int | None = None


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """A loop at run time of `iterations`, each with `chunks` vectors of `lanes`, and then straight-line `pieces`."""

    iterations: int
    chunks: int
    lanes: int
    pieces: tuple[Piece, ...]


def plan_vector_loop(loop: For, vector_bytes: int) -> VectorPlan:
    """The plan of a loop over lanes: unrolled when short or when its buffers belong in registers, else by several
    vectors. `vector_bytes` is the width of a register.
    """
    # The widest type decides: each of its vectors is one register, and narrower types fill a part of theirs.
    native = max(1, vector_bytes // _widest_item(loop.body))
    lanes, chunks = native, CHUNKS_PER_ITERATION
    if has_stmt(For, loop.body):
        # Wide vectors give the inner reduction several independent accumulators.
        lanes, chunks = native * CHUNKS_PER_ITERATION, 1
    iterations = loop.extent // lanes // chunks
    if iterations <= 1 or _wants_literals(loop):
        iterations = 0
    pieces = _pieces(loop, iterations * chunks * lanes, lanes, native if vector_bytes >= MASKED_BYTES else 0)
    return VectorPlan(iterations, chunks, lanes, tuple(pieces))


def _pieces(loop: For, start: int, lanes: int, maskable: int) -> Iterator[Piece]:
    """A vector loop from `start` on: full registers, then the remainder, under a mask or as powers of two. `maskable`
    are the lanes of a register with a mask, 0 without masks.
    """
    while start < loop.extent:
        remainder = loop.extent - start
        below, above = 1 << (remainder.bit_length() - 1), 1 << remainder.bit_length()
        # Within one register a mask saves a piece; of several registers most lanes should be active.
        is_worth_a_mask = below < remainder and above <= lanes and (above <= maskable or 4 * remainder >= 3 * above)
        if maskable and is_worth_a_mask and _is_maskable(loop, start + above):
            bits = ", ".join(f"i1 {lane < remainder:d}" for lane in range(above))
            yield Piece(start, above, Value(f"<{bits}>", above, BOOL), remainder)
            return
        lanes = min(lanes, below)
        yield Piece(start, lanes)
        start += lanes


def _is_maskable(loop: For, end: int) -> bool:
    """Whether lanes up to `end` can run under a mask: registers have room for them."""
    for buffer, indices, _ in accesses_in(loop.body):
        if buffer.scope == "local" and loop.var in variables(*indices):
            return False
        # Loads from registers are not masked (see `load`): their array must reach to the last lane.
        if buffer.scope == "register" and buffer.shape and (indices[-1] != loop.var or buffer.shape[-1] < end):
            return False
    return True


def _widest_item(body: Stmt) -> int:
    """Bytes of the widest type stored, or loaded from register buffers."""
    accesses = accesses_in(body)
    return max(item_bytes(buffer.dtype) for buffer, _, written in accesses if written or buffer.scope == "register")


def _wants_literals(loop: For) -> bool:
    """Whether the loop moves through a buffer that should be in registers."""
    for buffer, indices, _ in accesses_in(loop.body):
        # One element that all lanes read needs no literal: the loop may be long.
        is_small = buffer.scope == "local" and buffer.nbytes <= SMALL_BUFFER_BYTES
        # LLVM's SROA splits an array into registers only where every index into it is a literal.
        if (buffer.scope == "register" and buffer.shape) or (is_small and loop.var in variables(*indices)):
            return True
    return False


def is_roomy(scope: Allocate) -> bool:
    """Whether all loops along the rows of registers have the same extent, so that none reads past another's end."""
    if scope.buffer.scope != "register" or not scope.buffer.shape:
        return False
    last = {indices[-1] for buffer, indices, _ in accesses_in(scope.body) if buffer == scope.buffer}
    loops = [loop for loop in find_stmts(For, scope.body) if loop.var in last]
    return len({loop.extent for loop in loops}) == 1 and {loop.var for loop in loops} >= last
