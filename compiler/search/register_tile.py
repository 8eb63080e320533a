"""In: bounds of a statement of B programs. Out: the register tile that the code generator makes of its innermost loops,
and the unroll limits that make a difference.

Always: what the lowering does, said in arrays.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.dtype import accumulated, item_bytes
from compiler.schedule.bounds import Loop, StageNest
from compiler.schedule.state import Annotation, IterKind, Number
from compiler.search.genome import Mask, Rows
from compiler.target import HardwareParams

Counts = npt.NDArray[np.int64]


def register_tile(nest: StageNest, vector: Number, hardware: HardwareParams, count: int) -> Counts:
    """Accumulators (B,) of a statement: its spatial loops inside the innermost reduction, in vectors.

    `vector` says whether the last spatial loop is a vector loop. One a result where no spatial loop is inside a
    reduction.
    """
    held = max(item_bytes(accumulated(dtype)) for dtype in nest.op.dtypes)
    lanes = max(1, hardware.vector_unit_bytes // held)
    tile = np.full(count, len(nest.writes), dtype=np.int64)
    reduced = np.zeros(count, dtype=np.bool_)
    last = True
    for loop in reversed(_own(nest)):
        extent = np.asarray(loop.extent)
        if loop.kind is IterKind.REDUCTION:
            reduced = reduced | (extent > 1)
            continue
        lane_loop = last and loop.annotation is not Annotation.UNROLL
        turns = np.where(np.asarray(vector) > 0, -(-extent // lanes), extent) if lane_loop else extent
        tile = np.where(reduced, tile, tile * turns)
        last = last and not lane_loop
    return np.where(reduced, tile, len(nest.writes))


def settled_unroll(
    nest: StageNest, vector: Number, limits: Rows, choices: Sequence[int], hardware: HardwareParams
) -> Rows:
    """The least of `choices` that unrolls as many reduction loops as each of `limits` (B,) does.

    Loops are unrolled whole, from the innermost outwards, while the vector operations stay within the limit, up to the
    next spatial loop.
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

    def unrolled(limit: Rows | int) -> Counts:
        flags = [open_ & (size <= limit) for open_, size in sizes]
        return np.sum(flags, axis=0, dtype=np.int64) if flags else np.zeros(len(limits), dtype=np.int64)

    settled, target = limits.copy(), unrolled(limits)
    for choice in sorted(choices, reverse=True):
        settled = np.where((settled >= choice) & (unrolled(choice) == target), choice, settled)
    return np.asarray(settled)


def itemsize(nest: StageNest) -> int:
    """Bytes of an element of the statement's widest result."""
    return max(item_bytes(dtype) for dtype in nest.op.dtypes)


def point_bytes(nest: StageNest) -> int:
    """Bytes of one element of each of the statement's results."""
    return sum(map(item_bytes, nest.op.dtypes))


def _own(nest: StageNest) -> tuple[Loop, ...]:
    return nest.loops[len(nest.loops) - nest.own :]
