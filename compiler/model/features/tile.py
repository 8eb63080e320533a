"""The feature columns of the register tile and of the parallel loop.

They follow the code generator, which unrolls the tile, splits its vector loop into registers and keeps one accumulator
per vector over the innermost reduction loops. A step also needs registers for a row of the factor that all rows share,
and another for the factor that all lanes share.
"""

from collections.abc import Sequence

import numpy as np

from retune.compiler.core.dtype import sum_type
from retune.compiler.core.target import HardwareParams
from retune.compiler.model.features.buffers import Columns, pick
from retune.compiler.model.features.footprint import Footprint
from retune.compiler.model.features.lowering import Innermost
from retune.compiler.model.features.nest import Flags, Floats, Nest, product_where, unrolled_flags

_SET_LINES, _WAYS = 64, 8
"""The first-level cache of x86 cores: sets of lines, and lines of a set (12 on Intel's since Ice Lake)."""


def tile_columns(nest: Nest, footprints: Sequence[Footprint], inside: Innermost, hardware: HardwareParams) -> Columns:
    """Columns of the groups "tile" and "annotations"."""
    vectorized, vectors = inside.vectorized | inside.in_lanes, inside.vectors
    accumulators = inside.accumulators
    # With several rows a row of the other factor is kept for all of them, else each load is used at once.
    needed = accumulators + np.where((inside.rows > 1) & vectorized, vectors, 1.0) + 1.0
    unrolled, straight_line = unrolled_flags(nest, accumulators)
    yield "tile_rows", inside.rows
    yield "tile_vectors", vectors
    yield "tile_accumulators", accumulators
    yield "tile_remainder_lanes", np.where(vectorized, inside.length % inside.lanes, 0.0)
    padded = np.ceil(inside.length / inside.lanes) * inside.lanes
    yield "tile_idle_lanes", np.where(vectorized, padded - inside.length, inside.lanes - 1.0) / inside.lanes
    yield "tile_fits", (needed <= hardware.registers).astype(np.float64)
    yield "tile_spilled", np.maximum(0.0, needed - hardware.registers)
    yield "tile_reduction", inside.iterations
    yield "tile_accumulator_moves", inside.steps / inside.iterations * _moves(inside)
    yield "tile_straight_line", straight_line
    loads = _loads(nest, footprints, inside, hardware.cache_line_bytes)
    yield from loads.items()
    fetched = loads["tile_vector_loads"] + loads["tile_broadcasts"] + loads["tile_gathers"]
    yield "tile_loads_per_fma", fetched / accumulators
    yield "tile_vector_operations", inside.steps * accumulators
    yield "tile_in_lanes", inside.in_lanes.astype(np.float64)
    yield "tile_dot_width", inside.dot
    yield from _annotation_columns("vec", nest.vector, nest)
    yield from _annotation_columns("unroll", unrolled, nest)


def parallel_columns(nest: Nest, operations: Floats, hardware: HardwareParams) -> Columns:
    """Columns of the group "parallel" and its annotations; `operations` (B,) are those of one iteration."""
    chunks = product_where(nest.parallel, nest.extents)
    # Chunks are divided equally: the thread with one more ends last.
    rounds = np.ceil(chunks / hardware.num_cores)
    grain = nest.inner[0] * operations / chunks
    yield "parallel_chunks", chunks
    yield "parallel_imbalance", rounds * hardware.num_cores / chunks
    yield "parallel_threads", np.minimum(chunks, hardware.num_cores)
    yield "parallel_grain", grain
    yield "parallel_time", grain * rounds
    yield from _annotation_columns("parallel", nest.parallel, nest)


def _moves(inside: Innermost) -> Floats:
    """Vectors moved around the steps of a tile; partial results in lanes are joined by halves instead."""
    # A tree over the lanes has log2 steps, and half of the lanes drop out with each.
    return np.where(inside.in_lanes, np.log2(inside.length) / 2.0 + 1.0, inside.accumulators)


def _loads(nest: Nest, footprints: Sequence[Footprint], inside: Innermost, line_bytes: int) -> dict[str, Floats]:
    """Loads into registers in one step of the innermost reduction, by kind, the vectors that have to be converted or
    interleaved, and the lines that evict each other before the next step reads them again.
    """
    names = ("tile_vector_loads", "tile_broadcasts", "tile_gathers", "tile_conversions", "tile_conflicts")
    totals = {name: np.zeros(nest.count) for name in names}
    accumulator_type = sum_type(nest.source.write.tensor.dtype)
    lane_loop = _lane_loop(nest, inside)
    has_lanes = inside.vectorized | inside.in_lanes
    for footprint in footprints:
        if not footprint.is_read or footprint.is_write:
            continue
        row_loops = nest.tile & ~nest.vector & footprint.moving
        rows = product_where(row_loops, nest.extents)
        stride = pick(np.vstack([np.zeros((1, nest.count)), footprint.strides]), lane_loop)
        straight = has_lanes & (stride == 1)
        scattered = has_lanes & (stride > 1)
        # Factors of a dot product that are not neighbors are read step by step.
        separate_reads = np.where((inside.dot > 1) & straight & (not footprint.packed), inside.dot, 1.0)
        vectors = np.where(straight, rows * inside.vectors, 0.0) * separate_reads
        gathers = np.where(scattered, rows * inside.length, 0.0)
        broadcasts = np.where(straight | scattered, 0.0, rows)
        totals["tile_vector_loads"] += vectors
        totals["tile_broadcasts"] += broadcasts
        totals["tile_gathers"] += gathers
        totals["tile_conflicts"] += _conflicts(row_loops, nest.extents, footprint, line_bytes)
        if footprint.tensor.dtype != accumulator_type:
            plain = vectors + np.where(has_lanes, broadcasts, 0.0)
            totals["tile_conversions"] += np.where(
                inside.dot > 1, np.where(separate_reads > 1, 2.0 * vectors, 0.0), plain
            )
    return totals


def _conflicts(row_loops: Flags, extents: Floats, footprint: Footprint, line_bytes: int) -> Floats:
    """(B,): lines that the rows of a tile read at a time in the same sets of the first cache, if they are more than a
    set holds; else 0. Rows at a distance of a multiple of 4 KiB are all in one set.
    """
    lines, sets = np.ones(row_loops.shape[1]), np.ones(row_loops.shape[1])
    for flags, extent, stride in zip(row_loops, extents, footprint.strides, strict=True):
        if not flags.any():
            continue
        distance = np.maximum(stride * footprint.element_bytes / line_bytes, 1.0)
        # Distances of a fraction of a line reach all sets in time.
        distinct = np.where(
            distance % 1.0 == 0.0, _SET_LINES / np.gcd(distance.astype(np.int64), _SET_LINES), _SET_LINES
        )
        lines = np.where(flags, lines * extent, lines)
        sets = np.where(flags, np.minimum(_SET_LINES, sets * np.minimum(extent, distinct)), sets)
    return np.where(lines > _WAYS * sets, lines, 0.0)


def _lane_loop(nest: Nest, inside: Innermost) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """(B,): the loop, counted from 1, whose iterations are lanes; 0 where there is none."""
    innermost = nest.depth - np.argmax(np.vstack([np.ones((1, nest.count), dtype=bool), nest.real])[::-1], axis=0)
    return np.where(inside.in_lanes, innermost, nest.vector_loop + 1)


def _annotation_columns(prefix: str, flags: Flags, nest: Nest) -> Columns:
    number = flags.sum(axis=0).astype(np.float64)
    some = number > 0
    yield f"{prefix}_num", number
    yield f"{prefix}_prod", np.where(some, product_where(flags, nest.extents), 0.0)
    innermost = nest.depth - np.argmax(np.vstack([np.ones((1, nest.count), dtype=bool), flags])[::-1], axis=0)
    yield f"{prefix}_len", pick(np.vstack([np.zeros((1, nest.count)), nest.extents]), innermost)
    for name, loops in nest.positions.items():
        yield f"{prefix}_{name}", np.any(flags[loops], axis=0).astype(np.float64)
