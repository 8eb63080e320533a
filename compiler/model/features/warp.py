"""Cost of one warp's access to a buffer: memory sectors and bank conflicts.

It evaluates the addresses of all threads of a warp, for B programs together. Strides are never negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.ir.alignment import VECTOR_BYTES
from retune.compiler.ir.tensor_core import WARP
from retune.compiler.model.features.footprint import Footprint
from retune.compiler.model.features.nest import Floats, Nest, column
from retune.compiler.schedule.state import SHARED_SUFFIX, THREAD_LOOPS, Annotation, Number

SECTOR = 32
"""Bytes that memory moves together: a quarter of a 128-byte cache line (CUDA C++ Best Practices Guide)."""

# Shared memory has 32 banks of 4 bytes (CUDA C++ Programming Guide).
_BANKS = 32
_BANK_BYTES = 4
_NOWHERE = -1.0


@dataclass(frozen=True, slots=True)
class WarpAccess:
    """One access of a buffer by the threads of a warp; arrays are (B,)."""

    width: Floats
    """Bytes that each thread moves in one access."""
    sectors: Floats
    """Sectors of memory that the warp accesses."""
    conflicts: Floats
    """Words in the busiest bank of shared memory, which serves one a cycle."""


def thread_loops(nest: Nest) -> list[int]:
    """The loops over threads of the innermost stage that has them along each dimension, the fastest first."""
    loops: list[int] = []
    for kind in THREAD_LOOPS:
        bound = [index for index, loop in enumerate(nest.source.loops) if loop.annotation is kind]
        if bound:
            stage = nest.source.loops[bound[-1]].key[0]
            loops.extend(index for index in reversed(bound) if nest.source.loops[index].key[0] == stage)
    return loops


def warp_access(nest: Nest, footprint: Footprint) -> WarpAccess:
    """The access of the first warp of a block."""
    offsets, active = _offsets(nest, footprint)
    # Threads that the block lacks access nothing.
    addresses = np.where(active, offsets * footprint.element_bytes, _NOWHERE)
    lanes = _vector_lanes(nest, footprint)
    width = lanes * footprint.element_bytes
    sectors = np.where(addresses < 0, _NOWHERE, np.floor(addresses / SECTOR))
    words = np.where(addresses < 0, _NOWHERE, np.floor(addresses / _BANK_BYTES))
    conflicts = np.ones(nest.count)
    words_each = np.maximum(1.0, width / _BANK_BYTES)
    most = int(words_each.max(initial=1.0))
    # A wide access takes several consecutive words of each thread.
    spread = [np.where((words < 0) | (step >= words_each), _NOWHERE, words + step) for step in range(most)]
    conflicts = _busiest(np.concatenate(spread)) if spread else conflicts
    return WarpAccess(width, _distinct(sectors), conflicts)


def _offsets(nest: Nest, footprint: Footprint) -> tuple[Floats, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """(32, B): the distance of each thread's element from the first thread's, and which threads exist."""
    thread = np.repeat(np.arange(WARP, dtype=np.float64)[:, None], nest.count, axis=1)
    offsets = np.zeros_like(thread)
    weights = _fetched_weights(nest, footprint)
    element = thread * _width_of_fetch(nest)
    lanes = _vector_lanes(nest, footprint)
    for index in thread_loops(nest):
        extent = nest.extents[index]
        stride = footprint.strides[index]
        # Neighbors of one access are between those of two threads, also where a fused loop hides it.
        offsets += np.mod(thread, extent) * np.where(stride == 1, np.maximum(stride, lanes), stride)
        thread = np.floor(thread / extent)
    if weights is None:
        return offsets, thread == 0
    offsets = np.zeros_like(offsets)
    for extent, weight in zip(reversed(nest.source.write.shape), reversed(weights), strict=True):
        offsets += np.mod(element, extent) * weight
        element = np.floor(element / extent)
    return offsets, thread == 0


def _fetched_weights(nest: Nest, footprint: Footprint) -> list[Floats] | None:
    """Elements between neighbors along each dimension of a tile that threads fetch together, element by element
    whatever its rows; None for all other statements.
    """
    source = nest.source
    shape: Sequence[Number] = source.write.shape if footprint.is_write else footprint.tensor.shape
    if not source.op.name.endswith(SHARED_SUFFIX) or len(shape) != len(source.write.shape):
        return None
    if footprint.is_write and source.write.strides is not None:
        return [column(stride, nest.count) for stride in source.write.strides]
    weights, weight = [], np.ones(nest.count)
    for extent in reversed(shape):
        weights.append(weight)
        weight = weight * extent
    return weights[::-1]


def _width_of_fetch(nest: Nest) -> Floats:
    """Elements that each thread fetches in one access."""
    lanes = np.ones(nest.count)
    for index, loop in enumerate(nest.source.loops):
        if loop.annotation is Annotation.VECTORIZE:
            lanes = lanes * nest.extents[index]
    return lanes


def _vector_lanes(nest: Nest, footprint: Footprint) -> Floats:
    """Neighbors that each thread moves in one access."""
    if _fetched_weights(nest, footprint) is not None:
        rows = nest.source.write.shape[-1] if footprint.tensor.shape else 1
        lanes = _width_of_fetch(nest)
        return np.where(np.mod(rows, lanes) == 0, lanes, 1.0)
    lanes = np.ones(nest.count)
    for index, loop in enumerate(nest.source.loops):
        if loop.annotation is Annotation.VECTORIZE:
            lanes = np.where(footprint.strides[index] == 1, lanes * nest.extents[index], lanes)
    return np.where(lanes > 1, lanes, _merged_lanes(nest, footprint))


def _merged_lanes(nest: Nest, footprint: Footprint) -> Floats:
    """Neighbors of a register tile, or along the steps of a thread's sums, that code moves in one access: as many as
    these loops run over, if everything else moves the access by a multiple of these.
    """
    most = max(1, VECTOR_BYTES // int(footprint.element_bytes))
    strides = [np.abs(stride) for stride in footprint.strides]
    run, inside = np.ones(nest.count), []
    for index in reversed(range(nest.depth)):
        written_out = nest.tile[index] | (nest.reduce[index] and nest.source.attached)
        inside.append(written_out & nest.real[index] & (strides[index] == run))
        run = np.where(inside[-1], run * nest.extents[index], run)
    # A vector divides the run, and whatever else moves the access moves it by whole vectors: else some would be
    # misaligned.
    lanes = np.gcd(run.astype(np.int64), most)
    for index, within in zip(reversed(range(nest.depth)), inside, strict=True):
        apart = np.where(within | ~nest.real[index], 0, strides[index]).astype(np.int64)
        lanes = np.gcd(lanes, apart)
    return np.asarray(lanes, np.float64)


def _distinct(values: Floats) -> Floats:
    """(N, B) → (B,): number of different values that are not negative."""
    # Sorted, equal values are neighbors: one pass counts the distinct values of all programs.
    ordered = np.sort(values, axis=0)
    fresh = np.ones(ordered.shape, dtype=np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return np.asarray((fresh & (ordered >= 0)).sum(axis=0), dtype=np.float64)


def _busiest(words: Floats) -> Floats:
    """(N, B) → (B,): number of different words in the busiest bank."""
    ordered = np.sort(words, axis=0)
    fresh = np.ones(ordered.shape, dtype=np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    fresh &= ordered >= 0
    counts = np.zeros((_BANKS, words.shape[1]))
    banks = np.mod(ordered, _BANKS).astype(np.intp)
    programs = np.broadcast_to(np.arange(words.shape[1]), words.shape)
    # `add.at`, since several words of a program may be in one bank, which `+=` would count once.
    np.add.at(counts, (banks[fresh], programs[fresh]), 1.0)
    return np.asarray(np.maximum(1.0, counts.max(axis=0)))
