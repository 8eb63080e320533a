"""In: a statement's loops and what its buffers touch. Out: columns of the register tile and the parallel loop.
Always: as the code generator does it. It unrolls the tile, splits its vector loop into registers and keeps one
accumulator per vector over the innermost reduction loops.
"""

from collections.abc import Sequence

import numpy as np

from compiler.features.buffers import Columns, pick
from compiler.features.nest import Flags, Floats, Nest, product_where, size_of, unrolled_flags
from compiler.features.touch import Touch
from compiler.target import HardwareParams

_SPARE_REGISTERS = 4
"""Vector registers that the inner loop needs for operands."""


def tile_columns(nest: Nest, touched: Sequence[Touch], hardware: HardwareParams) -> Columns:
    """Columns of the groups "tile" and "annotations"."""
    widest = max(size_of(write.tensor.dtype) for write in nest.source.writes)
    lanes = max(1, hardware.vector_unit_bytes // widest)
    length = product_where(nest.vector, nest.extents)
    vectorised: Flags = np.any(nest.vector, axis=0)
    vectors = np.where(vectorised, np.ceil(length / lanes), 1.0)
    rows = product_where(nest.tile & ~nest.vector, nest.extents)
    accumulators = rows * vectors * len(nest.source.writes)
    registers = hardware.vector_registers - _SPARE_REGISTERS
    unrolled, straight_line = unrolled_flags(nest, accumulators)
    reduction = _innermost_reduction(nest)
    yield "tile_rows", rows
    yield "tile_vectors", vectors
    yield "tile_accumulators", accumulators
    yield "tile_remainder_lanes", np.where(vectorised, length % lanes, 0.0)
    yield "tile_idle_lanes", np.where(vectorised, vectors * lanes - length, lanes - 1.0) / lanes
    yield "tile_fits", (accumulators <= registers).astype(np.float64)
    yield "tile_spilled", np.maximum(0.0, accumulators - registers)
    yield "tile_reduction", reduction
    yield "tile_accumulator_moves", nest.inner[0] / (reduction * rows * length) * accumulators
    yield "tile_straight_line", straight_line
    loads = _loads(nest, touched, vectors, vectorised)
    yield from loads.items()
    yield "tile_loads_per_fma", sum(loads.values()) / accumulators
    yield "tile_vector_operations", nest.inner[0] / (rows * length) * accumulators
    yield from _annotation_columns("vec", nest.vector, nest)
    yield from _annotation_columns("unroll", unrolled, nest)


def parallel_columns(nest: Nest, operations: Floats, hardware: HardwareParams) -> Columns:
    """Columns of the group "parallel" and its annotations; `operations` (B,) is what one iteration computes."""
    chunks = product_where(nest.parallel, nest.extents)
    rounds = np.ceil(chunks / hardware.num_cores)
    grain = nest.inner[0] * operations / chunks
    yield "parallel_chunks", chunks
    yield "parallel_imbalance", rounds * hardware.num_cores / chunks
    yield "parallel_threads", np.minimum(chunks, hardware.num_cores)
    yield "parallel_grain", grain
    yield "parallel_time", grain * rounds
    yield from _annotation_columns("parallel", nest.parallel, nest)


def _innermost_reduction(nest: Nest) -> Floats:
    """(B,): iterations of the reduction loops between the tile and the next spatial loop outside it."""
    product = np.ones(nest.count)
    seen = np.zeros(nest.count, dtype=bool)
    closed = np.zeros(nest.count, dtype=bool)
    for index in reversed(range(nest.depth)):
        if nest.reduce[index]:
            product = np.where(closed, product, product * nest.extents[index])
            seen = seen | nest.real[index]
        else:
            closed = closed | (seen & nest.real[index] & ~nest.tile[index])
    return product


def _loads(nest: Nest, touched: Sequence[Touch], vectors: Floats, vectorised: Flags) -> dict[str, Floats]:
    """What one step of the innermost reduction loads into registers, by kind."""
    found = {name: np.zeros(nest.count) for name in ("tile_vector_loads", "tile_broadcasts", "tile_gathers")}
    for touch in touched:
        if not touch.is_read or touch.is_write:
            continue
        rows = product_where(nest.tile & ~nest.vector & touch.moving, nest.extents)
        stride = touch.strides[nest.vector_loop] if nest.vector_loop >= 0 else np.zeros(nest.count)
        straight = vectorised & (stride == 1)
        scattered = vectorised & (stride > 1)
        found["tile_vector_loads"] += np.where(straight, rows * vectors, 0.0)
        found["tile_broadcasts"] += np.where(straight | scattered, 0.0, rows)
        found["tile_gathers"] += np.where(scattered, rows * product_where(nest.vector, nest.extents), 0.0)
    return found


def _annotation_columns(prefix: str, flags: Flags, nest: Nest) -> Columns:
    number = flags.sum(axis=0).astype(np.float64)
    some = number > 0
    yield f"{prefix}_num", number
    yield f"{prefix}_prod", np.where(some, product_where(flags, nest.extents), 0.0)
    innermost = nest.depth - np.argmax(np.vstack([np.ones((1, nest.count), dtype=bool), flags])[::-1], axis=0)
    yield f"{prefix}_len", pick(np.vstack([np.zeros((1, nest.count)), nest.extents]), innermost)
    for name, loops in nest.positions.items():
        yield f"{prefix}_{name}", np.any(flags[loops], axis=0).astype(np.float64)
