"""In: a statement's accesses and loops. Out: elements and cache lines that each buffer touches, and its strides.
Always: arrays over programs; only loops that occur in an index change a region, so levels share arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.features.nest import Flags, Floats, Nest, column, size_of
from compiler.schedule.bounds import Access
from compiler.schedule.linear import Linear, LoopKey
from compiler.te.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Touch:
    """One buffer of a statement.

    `elements[i]` and `lines[i]` count the distinct elements and cache lines touched at level i, (B,) each.
    `strides[j]` is the distance in elements between iterations of loop j: None, or 0, when the address does not
    depend on the loop. `packed` buffers are stored in the order of the loops, `local` ones live inside the loops of
    another statement. An address that is not `exact` is taken to walk through memory as the loops run.
    """

    tensor: Tensor
    element_bytes: int
    is_read: bool
    is_write: bool
    elements: tuple[Floats, ...]
    lines: tuple[Floats, ...]
    strides: tuple[Floats | None, ...]
    packed: bool
    local: bool
    exact: bool

    def moves(self, loop: int) -> Flags | None:
        """(B,): whether the address depends on a loop; None when it does for no program."""
        stride = self.strides[loop]
        return None if stride is None else stride > 0


def touches(nest: Nest, local: frozenset[Tensor], line_bytes: int) -> tuple[Touch, ...]:
    """The written buffer, then those read, in reading order, each once; a reduction reads what it writes."""
    source = nest.source
    reads: dict[Tensor, list[Access]] = {}
    for access in source.reads:
        reads.setdefault(access.tensor, []).append(access)
    written = source.write.tensor
    updated = any(nest.reduce) or written in reads
    free = source.op.attrs.get("layout_free_placeholders", ())
    first = _touch(nest, [source.write], (updated, True), False, written in local, line_bytes)
    others = [
        _touch(nest, group, (True, False), tensor in free, tensor in local, line_bytes)
        for tensor, group in reads.items()
        if tensor is not written
    ]
    return (first, *others)


def _touch(
    nest: Nest, accesses: Sequence[Access], use: tuple[bool, bool], packed: bool, local: bool, line_bytes: int
) -> Touch:
    first = accesses[0]
    shape = [column(extent, nest.count) for extent in first.shape]
    regions = [
        _dimension_region(nest, [access.index[dim] for access in accesses], extent) for dim, extent in enumerate(shape)
    ]
    element_bytes = size_of(first.tensor.dtype)
    elements, lines = _elements_and_lines(nest, regions, shape, element_bytes / line_bytes, packed)
    return Touch(
        tensor=first.tensor,
        element_bytes=element_bytes,
        is_read=use[0],
        is_write=use[1],
        elements=elements,
        lines=lines,
        strides=_packed_strides(nest, first) if packed else _strides(nest, first, shape),
        packed=packed,
        local=local,
        exact=all(linear.exact for access in accesses for linear in access.index),
    )


def _dimension_region(nest: Nest, indices: Sequence[Linear], extent: Floats) -> list[Floats]:
    """Per level: how many positions of one dimension are touched; `indices` are those of all reads of the buffer."""
    count = nest.count
    exact = all(linear.exact for linear in indices)
    lows = [column(linear.const, count) for linear in indices]
    highs = [low + column(linear.spread, count) for low, linear in zip(lows, indices, strict=True)]
    points = column(len(indices), count)
    region = [_positions(lows, highs, points, extent)]
    for index in reversed(range(nest.depth)):
        key = nest.source.loops[index].key
        if exact and not any(key in linear.terms for linear in indices):
            region.append(region[-1])
            continue
        moved = np.full(count, not exact)
        for which, linear in enumerate(indices):
            if key in linear.terms:
                coefficient = column(linear.terms[key], count)
                span = coefficient * (nest.extents[index] - 1)
                lows[which] = lows[which] + np.minimum(span, 0)
                highs[which] = highs[which] + np.maximum(span, 0)
                moved = moved | (coefficient != 0)
        points = np.where(moved, points * nest.extents[index], points)
        region.append(_positions(lows, highs, points, extent))
    return region[::-1]


def _positions(lows: Sequence[Floats], highs: Sequence[Floats], points: Floats, extent: Floats) -> Floats:
    low, high = lows[0], highs[0]
    for other in lows[1:]:
        low = np.minimum(low, other)
    for other in highs[1:]:
        high = np.maximum(high, other)
    return np.minimum(np.minimum(high - low + 1, points), extent)


def _elements_and_lines(
    nest: Nest, regions: Sequence[Sequence[Floats]], shape: Sequence[Floats], lines_an_element: float, packed: bool
) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """Elements and lines at each level; a run of memory goes on over a dimension while the inner ones are whole."""
    one = np.ones(nest.count)
    elements: list[Floats] = []
    lines: list[Floats] = []
    for level in range(nest.depth + 1):
        if level and all(region[level] is region[level - 1] for region in regions):
            elements.append(elements[-1])
            lines.append(lines[-1])
            continue
        total = one
        run = one
        whole = np.ones(nest.count, dtype=bool)
        for region, extent in zip(reversed(regions), reversed(shape), strict=True):
            size = region[level]
            total = total * size
            run = np.where(whole, run * size, run)
            whole = whole & (size == extent)
        if packed:
            run = total
        elements.append(total)
        lines.append(total / run * np.maximum(1.0, run * lines_an_element))
    return tuple(elements), tuple(lines)


def _strides(nest: Nest, access: Access, shape: Sequence[Floats]) -> tuple[Floats | None, ...]:
    weight = np.ones(nest.count)
    flat: dict[LoopKey, Floats] = {}
    for linear, extent in zip(reversed(access.index), reversed(shape), strict=True):
        for key, coefficient in linear.terms.items():
            flat[key] = flat.get(key, 0.0) + column(coefficient, nest.count) * weight
        weight = weight * extent
    exact = all(linear.exact for linear in access.index)
    unknown = None if exact else np.ones(nest.count)
    return tuple(np.abs(flat[loop.key]) if loop.key in flat else unknown for loop in nest.source.loops)


def _packed_strides(nest: Nest, access: Access) -> tuple[Floats | None, ...]:
    """A packed buffer is stored in the order of the loops that its address depends on."""
    used = {key for linear in access.index for key in linear.terms}
    strides: list[Floats | None] = []
    weight = np.ones(nest.count)
    for index in reversed(range(nest.depth)):
        if nest.source.loops[index].key in used:
            strides.append(weight)
            weight = weight * nest.extents[index]
        else:
            strides.append(None)
    return tuple(reversed(strides))
