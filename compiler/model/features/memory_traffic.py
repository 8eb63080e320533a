"""The feature columns of memory traffic, arithmetic intensity and allocation, as arrays (B,)."""

from collections.abc import Sequence

import numpy as np

from retune.compiler.model.features.buffers import Columns, pick
from retune.compiler.model.features.footprint import Footprint
from retune.compiler.model.features.nest import Floats, Nest, column
from retune.compiler.model.features.table import CACHES, GROUPS, INTENSITY_POINTS


def memory_columns(nest: Nest, footprints: Sequence[Footprint], operations: Floats, line_bytes: int) -> Columns:
    """Columns of the group "memory"; `operations` (B,) are those of one iteration."""
    lines = np.zeros((nest.depth + 1, nest.count))
    for footprint in footprints:
        lines += footprint.lines
    region = lines * line_bytes
    for group in range(GROUPS):
        outermost = [index for index, number in enumerate(nest.groups) if number <= group]
        yield f"working_set_{group}", region[outermost[0] if outermost else nest.depth]
    traffic = nest.outer * region
    total = nest.inner[0] * operations
    for name, capacity in CACHES.items():
        # Working-set model: a level whose region fits the cache loads it once for each iteration of the loops around
        # it. Regions shrink inwards: the first level that fits is kept.
        overflowing = (region > capacity).sum(axis=0)
        moved = pick(traffic, np.clip(overflowing - 1, 0, nest.depth))
        yield f"traffic_{name}", moved
        yield f"intensity_{name}", total / moved


def intensity_columns(nest: Nest, all_bytes: Floats, operations: Floats) -> Columns:
    """Operations per touched byte, sampled where 10 %, 20 % ... of the statement's operations are inside."""
    if nest.depth == 0:
        return
    done = (nest.inner * operations)[:-1][::-1]
    ratio = done / all_bytes[:-1][::-1]
    last = nest.depth - 1
    shares = np.arange(1, INTENSITY_POINTS + 1)[:, None] / INTENSITY_POINTS
    target = done[last] * shares
    # The tolerance absorbs rounding of the products, so that a target at a loop's edge picks that loop.
    upper = np.minimum((done < target[:, None] * (1 - 1e-12)).sum(axis=1), last)
    lower = np.maximum(upper - 1, 0)
    programs = np.arange(nest.count)
    start, end = done[lower, programs], done[upper, programs]
    steps = end > start
    share = np.where(steps, np.clip((target - start) / np.where(steps, end - start, 1.0), 0.0, 1.0), 1.0)
    curve = ratio[lower, programs] * (1 - share) + ratio[upper, programs] * share
    for point, value in enumerate(curve):
        yield f"arith_intensity_curve_{point}", value


def allocation_columns(nest: Nest, footprints: Sequence[Footprint]) -> Columns:
    """Columns of the group "allocation", 0 for a statement outside another's loops. A statement of several results has
    a buffer for each, all of one shape; `footprints` begins with them.
    """
    if not nest.source.attached:
        return
    write = nest.source.write
    elements = np.ones(nest.count)
    for extent in write.shape if write.strides is None else (write.shape[0], write.strides[0]):
        elements = elements * column(extent, nest.count)
    times = nest.outer[nest.depth - nest.source.own]
    total = np.ones(nest.count)
    for extent in nest.source.op.shape if nest.source.whole is None else nest.source.whole:
        total = total * column(extent, nest.count)
    results = footprints[: len(nest.source.writes)]
    yield "alloc_size", elements * sum(written.element_bytes for written in results)
    yield "alloc_prod", elements * times
    yield "alloc_outer_prod", times
    yield "alloc_inner_prod", nest.inner[0] / times
    yield "alloc_recompute", results[0].elements[nest.depth - nest.source.own] * times / total
