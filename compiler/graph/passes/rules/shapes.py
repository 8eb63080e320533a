"""Correspondence between the axes of shapes with equal element counts, in row-major order."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul

from retune.compiler.ir.dims import estimate, same


def reshaped_broadcast(
    operand: tuple[int, ...], after: tuple[int, ...], before: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The shape that broadcasts `operand` to `before` (as large as `after`) as it broadcasts to `after`, if any."""
    if len(operand) > len(after):
        return None
    operand = (*(1 for _ in range(len(after) - len(operand))), *operand)
    wanted: list[int] = []
    for new, old in aligned_axes(after, before):
        seen = tuple(operand[axis] for axis in new)
        if seen == tuple(after[axis] for axis in new):
            wanted += [before[axis] for axis in old]
        elif all(extent == 1 for extent in seen):
            wanted += [1 for _ in old]
        else:
            return None
    while wanted and wanted[0] == 1:
        del wanted[0]
    return tuple(wanted)


def aligned_axes(
    left_shape: tuple[int, ...], right_shape: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Axes of both shapes in the smallest groups with equal element counts."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first = second = 0
    while first < len(left_shape) or second < len(right_shape):
        start, other = first, second
        left = right = 1
        # Two-pointer merge of the prefix products: the smaller product takes the next axis until both are equal, which
        # closes a group.
        while not same(left, right) or (first, second) == (start, other):
            if second >= len(right_shape) or (first < len(left_shape) and estimate(left) <= estimate(right)):
                left, first = left * left_shape[first], first + 1
            else:
                right, second = right * right_shape[second], second + 1
        groups.append((tuple(range(start, first)), tuple(range(other, second))))
    return groups


def common_factors(
    left: tuple[int, ...], right: tuple[int, ...]
) -> tuple[tuple[int, ...], list[range], list[range]] | None:
    """The coarsest shape from which merging neighboring axes gives both shapes, and its axes for each axis of `left`
    and of `right`. None if there is none.
    """
    if 0 in left:
        return None
    cuts = sorted({*_sizes_before(left), *_sizes_before(right)})
    if any(after % before for before, after in pairwise(cuts)):
        return None
    factors = tuple(after // before for before, after in pairwise(cuts))
    of_left, of_right = (
        [range(cuts.index(before), cuts.index(after)) for before, after in pairwise(_sizes_before(shape))]
        for shape in (left, right)
    )
    return factors, of_left, of_right


def _sizes_before(shape: tuple[int, ...]) -> list[int]:
    """The product of the extents before each axis, and of all."""
    return list(accumulate(shape, mul, initial=1))


def transposed_reshape(
    shape: Sequence[int], perm: Sequence[int], after: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """How to reshape x, then transpose, instead of reshaping the transpose of x to `after`.

    `shape` is the shape of x. None if merged or split axes are not adjacent in x.
    """
    turned = tuple(shape[axis] for axis in perm)
    blocks: list[tuple[int, tuple[int, ...]]] = []
    behind = -1
    for new, old in aligned_axes(after, turned):
        sources = [perm[axis] for axis in old if turned[axis] != 1]
        if sources:
            first, last = sources[0], sources[-1]
            between = (axis for axis in range(first, last + 1) if axis not in sources)
            # A group moves as one axis only if its axes are adjacent and ascending in x; axes of extent 1 between them
            # do not matter.
            if sources != sorted(sources) or any(shape[axis] != 1 for axis in between):
                return None
            behind = first
        blocks.append((behind, new))
    ordered = sorted(range(len(blocks)), key=lambda number: blocks[number][0])
    axes = [axis for number in ordered for axis in blocks[number][1]]
    return tuple(after[axis] for axis in axes), tuple(axes.index(axis) for axis in range(len(after)))


def rows_first(
    shape: Sequence[int], perm: Sequence[int], after: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """How to transpose x without moving its last axis, reshape and transpose again, instead of reshaping the transpose
    of x to `after`.

    `shape` is the shape of x. None unless the last axis becomes the first or second (as channels with a plane each) and
    stays an axis.
    """
    turned, last = tuple(shape[axis] for axis in perm), len(shape) - 1
    groups = [(new, [perm[axis] for axis in old]) for new, old in aligned_axes(after, turned)]
    of_last = next((group for group in groups if last in group[1]), groups[-1])
    in_front = last in (perm[0], *perm[1:2]) and perm[0] in (0, last)
    if perm[-1] == last or not in_front or [axis for axis in of_last[1] if shape[axis] != 1] != [last]:
        return None
    ordered = [*(group for group in groups if group is not of_last), of_last]
    axes = [axis for new, _ in ordered for axis in new]
    leading = [axis for _, old in ordered for axis in old if axis != last]
    return (*leading, last), tuple(after[axis] for axis in axes), tuple(axes.index(axis) for axis in range(len(after)))


def sliced_before(
    before: tuple[int, ...], after: tuple[int, ...], axis: int, start: int, stop: int
) -> tuple[int, int, int] | None:
    """The axis of `before` and its range that equal start to stop along `axis` of `after`; None if no block."""
    for new, old in aligned_axes(after, before):
        if axis not in new:
            continue
        wide = [index for index in old if before[index] != 1]
        below = prod(after[index] for index in new if index > axis)
        row = prod(before[index] for index in wide[1:])
        if not wide or prod(after[index] for index in new if index < axis) != 1:
            return None
        # The range is contiguous in row-major order; it is a block of `before` if both ends fall on its rows.
        if (start * below) % row or (stop * below) % row:
            return None
        return wide[0], start * below // row, stop * below // row
    return None
