"""The feature columns of a statement's first five buffers, one slot each, and of its memory traffic, arithmetic
intensity and allocation, as arrays (B,).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.model.features.footprint import Footprint
from retune.compiler.model.features.nest import Flags, Floats, Nest, column
from retune.compiler.model.features.table import BUFFERS, CACHES, GROUPS, INTENSITY_POINTS

Columns = Iterator[tuple[str, Floats | float]]


@dataclass(frozen=True, slots=True)
class Producer:
    """The statement that writes a buffer inside loops that it shares with the reader."""

    shared: int
    """The number of shared loops."""
    written: Floats
    """Elements that it writes in one iteration of them, (B,)."""
    footprints: Floats
    """Bytes of all buffers that it touches there, (B,)."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """How a buffer's elements are touched again; arrays are (B,)."""

    by_loop: Flags
    """Whether a loop of the statement comes back to them."""
    serial: Flags
    """Whether the statement that produced them touched them last."""
    iterations: Floats
    """Distance in iterations."""
    bytes: Floats
    """Distance in bytes of all buffers touched between."""
    count: Floats
    """Number of reuses."""


def footprint_bytes(nest: Nest, footprints: Sequence[Footprint]) -> Floats:
    """(L + 1, B): bytes of all buffers touched at each level."""
    total = np.zeros((nest.depth + 1, nest.count))
    for footprint in footprints:
        total += footprint.elements * footprint.element_bytes
    return total


def pick(values: Floats, levels: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Floats:
    """(N, B), (B,) → (B,): for each program the value at its own level."""
    picked: Floats = values[levels, np.arange(values.shape[1])]
    return picked


def buffer_columns(
    nest: Nest,
    footprints: Sequence[Footprint],
    producers: Sequence[Producer | None],
    all_bytes: Floats,
    line_bytes: int,
) -> Columns:
    """Columns `B0.*` ... of one statement; slots without a buffer stay 0."""
    for slot, (footprint, producer) in enumerate(zip(footprints[:BUFFERS], producers, strict=False)):
        reuse = _reuse(nest, footprint, producer, all_bytes)
        for name, value in _columns(nest, footprint, reuse, line_bytes):
            yield f"B{slot}.{name}", value


def _columns(nest: Nest, footprint: Footprint, reuse: Reuse, line_bytes: int) -> Columns:
    lines, stride = _line_transfers(nest, footprint, line_bytes)
    volume = {
        "bytes": nest.inner[0] * footprint.element_bytes,
        "unique_bytes": footprint.elements[0] * footprint.element_bytes,
        "lines": lines,
        "unique_lines": footprint.lines[0],
    }
    yield "read", float(footprint.is_read and not footprint.is_write)
    yield "write", float(footprint.is_write and not footprint.is_read)
    yield "read_write", float(footprint.is_read and footprint.is_write)
    yield from volume.items()
    yield "loop_multiple_read", reuse.by_loop.astype(np.float64)
    yield "serial_multiple_read_write", reuse.serial.astype(np.float64)
    yield "no_reuse", (~(reuse.by_loop | reuse.serial)).astype(np.float64)
    yield "reuse_dis_iter", reuse.iterations
    yield "reuse_dis_bytes", reuse.bytes
    yield "reuse_ct", reuse.count
    # As in Ansor, a volume without reuse counts twice.
    volumes = np.where(reuse.count > 0, reuse.count, 0.5)
    for name, value in volume.items():
        yield f"{name}_d_reuse_ct", value / volumes
    yield "stride", stride
    yield "packed", float(footprint.packed)
    yield "local", float(footprint.local)


def _line_transfers(nest: Nest, footprint: Footprint, line_bytes: int) -> tuple[Floats, Floats]:
    """Cache lines that consecutive accesses touch, and the stride of the innermost loop, 0 if it does not move."""
    # Row 0 says "no loop moves the address": all iterations then use the same line.
    moving = np.vstack([np.ones((1, nest.count), dtype=bool), footprint.moving])
    # The innermost loop that moves the address: argmax finds the first in the reversed order.
    loop = nest.depth - np.argmax(moving[::-1], axis=0)
    repeats = pick(nest.inner, loop)
    strides = np.vstack([np.zeros((1, nest.count)), footprint.strides])
    stride = pick(strides, loop)
    # Iterations less than a line apart share lines.
    share = np.minimum(1.0, stride * footprint.element_bytes / line_bytes)
    lines = np.maximum(1.0, nest.inner[0] / repeats * share)
    return lines, np.where(repeats == 1, stride, 0.0)


def _reuse(nest: Nest, footprint: Footprint, producer: Producer | None, all_bytes: Floats) -> Reuse:
    """The innermost loop that does not move the address, unless a producer's loop is further in."""
    # Row 0 says "nowhere".
    still = np.vstack([np.ones((1, nest.count), dtype=bool), nest.real & ~footprint.moving])
    loop = nest.depth - np.argmax(still[::-1], axis=0)
    by_loop = loop > 0
    serial = np.zeros(nest.count, dtype=bool)
    iterations = np.where(by_loop, pick(nest.inner, loop), 0.0)
    distance = np.where(by_loop, pick(all_bytes, loop), 0.0)
    trips = np.vstack([np.zeros((1, nest.count)), nest.extents])
    count = pick(trips, loop)
    if producer is not None:
        serial = loop <= producer.shared
        by_loop = by_loop & ~serial
        iterations = np.where(serial, np.minimum(producer.written, footprint.elements[producer.shared]), iterations)
        distance = np.where(serial, producer.footprints + all_bytes[producer.shared], distance)
        count = np.where(serial, 1.0, count)
    return Reuse(by_loop, serial, iterations, distance, count)


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
