"""Predicts the register tile of a statement's innermost loops, and which unroll limits make a difference.

It follows lowering, on arrays of B programs.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from retune.compiler.core.dtype import item_bytes, sum_type
from retune.compiler.core.target import HardwareParams
from retune.compiler.schedule.bounds import Loop
from retune.compiler.schedule.reads import held_types, stored_types
from retune.compiler.schedule.state import Annotation, IterKind, Number
from retune.compiler.schedule.statements import StageNest
from retune.compiler.search.genome import Mask, Rows

Counts = npt.NDArray[np.int64]


def register_tile(nest: StageNest, vector: Number, hardware: HardwareParams, count: int) -> Counts:
    """Accumulators (B,) of a statement: its spatial loops inside the innermost reduction, in vectors.

    `vector` says whether the last spatial loop is a vector loop. Without spatial loops inside a reduction, one
    accumulator per result.
    """
    return _tile_and_row(nest, vector, hardware, count)[0]


def tile_registers(nest: StageNest, vector: Number, hardware: HardwareParams, count: int) -> Counts:
    """Vector registers (B,) of the innermost reduction: the accumulators, a row of operands that several rows share,
    and a broadcast operand. 0 without a tile.

    A tile of 6 rows of 64 floats needs 24 + 4 + 1; one of 7 rows 33, and with 32 registers each step spills.
    """
    tile, row = _tile_and_row(nest, vector, hardware, count)
    # An outer product keeps one factor as a row of vectors, reused by all rows of the tile, and broadcasts the other
    # into a register. With a single row nothing is reused, so loads need a single register as well.
    shared = np.where(tile > row * len(nest.writes), row, 1)
    return np.where(tile > len(nest.writes), tile + shared + 1, 0)


def straight_line(nest: StageNest, vector: Number, limits: Number, hardware: HardwareParams, count: int) -> Counts:
    """Vector operations (B,) of straight-line code: the register tile, the reduction loops that `limits` unrolls, and
    the loops that are always unrolled.
    """
    lanes = max(1, hardware.vector_unit_bytes // accumulator_bytes(nest))
    tile = np.full(count, len(nest.writes), dtype=np.int64)
    copies = np.ones(count, dtype=np.int64)
    reduced, growing = np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    last = True
    for loop in reversed(_own(nest)):
        extent = np.broadcast_to(np.asarray(loop.extent), (count,))
        if loop.annotation is Annotation.UNROLL:
            copies = copies * extent
            reduced = reduced | ((extent > 1) & (loop.kind is IterKind.REDUCTION))
        elif loop.kind is IterKind.REDUCTION:
            # Loops are unrolled from the innermost outward. The first one that exceeds the limit stops this for all
            # loops around it.
            growing = growing & (tile * copies * extent <= np.asarray(limits))
            copies = np.where(growing, copies * extent, copies)
            reduced = reduced | (extent > 1)
        else:
            iterations = np.where(np.asarray(vector) > 0, -(-extent // lanes), extent) if last else extent
            tile = np.where(reduced, tile, tile * iterations)
            growing = growing & ~(reduced & (extent > 1))
            last = False
    return np.where(reduced, tile, len(nest.writes)) * copies


def _tile_and_row(nest: StageNest, vector: Number, hardware: HardwareParams, count: int) -> tuple[Counts, Counts]:
    """Accumulators, and the vectors of one row of them; both (B,)."""
    lanes = max(1, hardware.vector_unit_bytes // accumulator_bytes(nest))
    tile = np.full(count, len(nest.writes), dtype=np.int64)
    row = np.ones(count, dtype=np.int64)
    reduced = np.zeros(count, dtype=np.bool_)
    last = True
    for loop in reversed(_own(nest)):
        extent = np.asarray(loop.extent)
        if loop.kind is IterKind.REDUCTION:
            reduced = reduced | (extent > 1)
            continue
        lane_loop = last and loop.annotation is not Annotation.UNROLL
        iterations = np.where(np.asarray(vector) > 0, -(-extent // lanes), extent) if lane_loop else extent
        tile = np.where(reduced, tile, tile * iterations)
        row = np.where(reduced, row, iterations) if lane_loop else row
        last = last and not lane_loop
    return np.where(reduced, tile, len(nest.writes)), np.where(np.asarray(vector) > 0, row, 1)


def settled_unroll(
    nest: StageNest, vector: Number, limits: Rows, choices: Sequence[int], hardware: HardwareParams
) -> Rows:
    """The least of `choices` that unrolls as many reduction loops as each of `limits` (B,).

    Loops are unrolled completely, innermost first, while the vector operations stay within the limit, up to the next
    spatial loop.
    """
    work = register_tile(nest, vector, hardware, len(limits))
    closed = np.zeros(len(limits), dtype=np.bool_)
    reduced = np.zeros(len(limits), dtype=np.bool_)
    sizes: list[tuple[Mask, Counts]] = []
    for loop in reversed(_own(nest)):
        real = np.broadcast_to(np.asarray(loop.extent) > 1, closed.shape)
        if loop.kind is IterKind.REDUCTION:
            work = np.where(real & ~closed, work * loop.extent, work)
            sizes.append((real & ~closed, work))
            reduced = reduced | real
        else:
            closed = closed | (reduced & real)

    def unrolled_loops(limit: Rows | int) -> Counts:
        flags = [open_ & (size <= limit) for open_, size in sizes]
        return np.sum(flags, axis=0, dtype=np.int64) if flags else np.zeros(len(limits), dtype=np.int64)

    settled, target = limits.copy(), unrolled_loops(limits)
    # Limits that unroll the same loops are the same program. Mapping them to the smallest gives rows a normal form.
    for choice in sorted(choices, reverse=True):
        settled = np.where((settled >= choice) & (unrolled_loops(choice) == target), choice, settled)
    return np.asarray(settled)


def itemsize(nest: StageNest) -> int:
    """Bytes of an element of the statement's widest result."""
    return max(item_bytes(dtype) for dtype in nest.op.dtypes)


def accumulator_bytes(nest: StageNest) -> int:
    """Bytes of an element of the statement's widest result while registers accumulate it."""
    return max(item_bytes(sum_type(dtype)) for dtype in nest.op.dtypes)


def point_bytes(nest: StageNest) -> int:
    """Bytes of one element of each of the statement's results in memory."""
    return sum(map(item_bytes, stored_types(nest.op)))


def held_bytes(nest: StageNest) -> int:
    """Bytes of one element of each of the statement's results in a thread's buffers."""
    return sum(map(item_bytes, held_types(nest.op)))


def _own(nest: StageNest) -> tuple[Loop, ...]:
    return nest.loops[len(nest.loops) - nest.own :]
