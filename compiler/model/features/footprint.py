"""The footprint of each buffer access, as arrays: elements and cache lines per loop level, and strides."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.dtype import item_bytes
from retune.compiler.model.features.nest import Flags, Floats, Nest, column
from retune.compiler.schedule.linear import Linear
from retune.compiler.schedule.statements import Access
from retune.compiler.te.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Footprint:
    """One buffer of a statement."""

    tensor: Tensor
    element_bytes: int
    is_read: bool
    is_write: bool
    elements: Floats
    """Distinct elements touched at each level, (L + 1, B)."""
    lines: Floats
    """Distinct cache lines touched at each level, (L + 1, B)."""
    strides: Floats
    """Elements between iterations of a loop, 0 where the address does not depend on it, (L, B)."""
    moving: Flags
    """Loops of more than one iteration that the address depends on, (L, B)."""
    packed: bool
    """Whether it is stored in the order of the loops."""
    local: bool
    """Whether it is allocated inside the loops of another statement."""
    exact: bool
    """Whether the address is affine; otherwise it is assumed to walk through memory."""


def footprints_of(nest: Nest, local: frozenset[Tensor], line_bytes: int) -> tuple[Footprint, ...]:
    """The written buffers, then those read, in reading order, each once; a reduction reads what it writes."""
    source = nest.source
    reads: dict[Tensor, list[Access]] = {}
    for access in source.reads:
        reads.setdefault(access.tensor, []).append(access)
    written = [write.tensor for write in source.writes]
    updated = any(nest.reduce)
    free = source.op.attrs.get("layout_free_placeholders", ())
    writes = [
        _footprint(nest, [write], (updated or write.tensor in reads, True), False, write.tensor in local, line_bytes)
        for write in source.writes
    ]
    read_only = [
        _footprint(nest, group, (True, False), tensor in free, tensor in local, line_bytes)
        for tensor, group in reads.items()
        if tensor not in written
    ]
    return (*writes, *read_only)


def _footprint(
    nest: Nest, accesses: Sequence[Access], use: tuple[bool, bool], packed: bool, local: bool, line_bytes: int
) -> Footprint:
    first = accesses[0]
    shape = [column(extent, nest.count) for extent in first.shape]
    regions = [
        _dimension_region(nest, [access.index[dim] for access in accesses], extent) for dim, extent in enumerate(shape)
    ]
    element_bytes = item_bytes(first.tensor.dtype)
    weights = _weights(nest, first, shape)
    elements, run = _elements_and_runs(nest, regions, shape, weights)
    # Packed in the order of the loops, all elements of a level are one run.
    if packed:
        run = elements
    strides = _packed_strides(nest, first) if packed else _strides(nest, first, weights)
    return Footprint(
        tensor=first.tensor,
        element_bytes=element_bytes,
        is_read=use[0],
        is_write=use[1],
        elements=elements,
        # Every run of contiguous elements touches at least one line; a second, unaligned line is neglected.
        lines=elements / run * np.maximum(1.0, run * (element_bytes / line_bytes)),
        strides=strides,
        moving=(strides > 0) & nest.real,
        packed=packed,
        local=local,
        exact=all(linear.exact for access in accesses for linear in access.index),
    )


def _dimension_region(nest: Nest, indices: Sequence[Linear], extent: Floats) -> Floats:
    """(L + 1, B): number of positions touched in one dimension; `indices` are those of all reads of the buffer."""
    region = np.empty((nest.depth + 1, nest.count))
    reads, indices = len(indices), list({id(linear): linear for linear in indices}.values())  # reads share forms
    exact = all(linear.exact for linear in indices)
    used = sorted({nest.numbers[key] for linear in indices for key in linear.terms if key in nest.numbers})
    # An index that is read from data may move with any loop.
    starts = used if exact else list(range(nest.depth))
    # The distance between the reads of one buffer stays the same as the loops run, if the reads differ by a constant.
    distance = _distance(indices, nest.count)
    points = column(reads, nest.count)
    reach = distance
    end = nest.depth + 1
    for index in reversed(starts):
        # Distinct positions are bounded by the span, by the number of accesses and by the dimension itself.
        region[index + 1 : end] = np.minimum(np.minimum(reach + 1, points), extent)
        end = index + 1
        key = nest.source.loops[index].key
        steps = [np.abs(linear.terms[key]) for linear in indices if key in linear.terms]
        if steps:
            widest = steps[0] if len(steps) == 1 else np.maximum.reduce(np.broadcast_arrays(*steps))
            reach = reach + widest * nest.last[index]
        points = points * nest.extents[index]
    region[:end] = np.minimum(np.minimum(reach + 1, points), extent)
    return region


def _distance(indices: Sequence[Linear], count: int) -> Floats:
    """(B,): from the lowest to the highest position that the reads touch while all loops stand still."""
    low: Floats = column(indices[0].const, count)
    high = low + indices[0].spread
    for linear in indices[1:]:
        low = np.minimum(low, linear.const)
        high = np.maximum(high, linear.const + linear.spread)
    return high - low


def _weights(nest: Nest, access: Access, shape: Sequence[Floats]) -> list[Floats]:
    """Elements per step along each dimension, padding included."""
    if access.strides is not None:
        return [column(stride, nest.count) for stride in access.strides]
    weights: list[Floats] = []
    weight = np.ones(nest.count)
    for extent in reversed(shape):
        weights.append(weight)
        weight = weight * extent
    return weights[::-1]


def _elements_and_runs(
    nest: Nest, regions: Sequence[Floats], shape: Sequence[Floats], weights: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """(L + 1, B) each: elements, and the length of contiguous runs, which end at partial or padded dimensions."""
    total = np.ones((nest.depth + 1, nest.count))
    run = total
    is_full: Flags | None = None
    inner_weight: Floats | None = None
    for size, extent, weight in zip(reversed(regions), reversed(shape), reversed(weights), strict=True):
        if is_full is not None and inner_weight is not None:
            is_full = is_full & (weight == inner_weight)
        inner_weight = weight * extent
        total = total * size
        run = run * size if is_full is None else np.where(is_full, run * size, run)
        filled = size == extent
        is_full = filled if is_full is None else is_full & filled
    return total, run


def _strides(nest: Nest, access: Access, weights: Sequence[Floats]) -> Floats:
    exact = all(linear.exact for linear in access.index)
    strides = np.zeros((nest.depth, nest.count))
    for linear, weight in zip(access.index, weights, strict=True):
        for key, coefficient in linear.terms.items():
            if key in nest.numbers:
                strides[nest.numbers[key]] += coefficient * weight
    strides = np.abs(strides)
    # An index that is read from data has no stride: anything but 0 means that it moves.
    return strides if exact else np.maximum(strides, 1.0)


def _packed_strides(nest: Nest, access: Access) -> Floats:
    """Strides of a packed buffer, stored in the order of the loops that its address depends on."""
    strides = np.zeros((nest.depth, nest.count))
    weight = np.ones(nest.count)
    used = {nest.numbers[key] for linear in access.index for key in linear.terms if key in nest.numbers}
    for index in sorted(used, reverse=True):
        strides[index] = weight
        weight = weight * nest.extents[index]
    return strides
