"""Correspondence between the axes of shapes with equal element counts, in row-major order."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul


def reshaped_broadcast(
    operand: tuple[int, ...], after: tuple[int, ...], before: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The shape in which an operand that is broadcast to `after` is broadcast alike to `before`, which has as many
    elements; None when there is none.
    """
    if len(operand) > len(after):
        return None
    operand = (*(1 for _ in range(len(after) - len(operand))), *operand)
    wanted: list[int] = []
    for new, old in aligned_axes(after, before):
        seen = tuple(operand[place] for place in new)
        if seen == tuple(after[place] for place in new):
            wanted += [before[place] for place in old]
        elif all(extent == 1 for extent in seen):
            wanted += [1 for _ in old]
        else:
            return None
    while wanted and wanted[0] == 1:
        del wanted[0]
    return tuple(wanted)


def aligned_axes(one: tuple[int, ...], two: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Axes of both shapes in the smallest groups that have as many elements."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first = second = 0
    while first < len(one) or second < len(two):
        start, other = first, second
        left = right = 1
        # Two-pointer merge of the prefix products: the smaller product takes the next axis until both are equal, which
        # closes a group.
        while left != right or (first, second) == (start, other):
            if second >= len(two) or (first < len(one) and left <= right):
                left, first = left * one[first], first + 1
            else:
                right, second = right * two[second], second + 1
        groups.append((tuple(range(start, first)), tuple(range(other, second))))
    return groups


def common_factors(
    one: tuple[int, ...], two: tuple[int, ...]
) -> tuple[tuple[int, ...], list[range], list[range]] | None:
    """The coarsest shape of which both shapes merge neighboring axes, and which of its axes make each axis of `one` and
    each axis of `two`. None when there is none.
    """
    if 0 in one:
        return None
    cuts = sorted({*_sizes_before(one), *_sizes_before(two)})
    if any(after % before for before, after in pairwise(cuts)):
        return None
    factors = tuple(after // before for before, after in pairwise(cuts))
    of_one, of_two = (
        [range(cuts.index(before), cuts.index(after)) for before, after in pairwise(_sizes_before(shape))]
        for shape in (one, two)
    )
    return factors, of_one, of_two


def _sizes_before(shape: tuple[int, ...]) -> list[int]:
    """The product of the extents before each axis, and of all."""
    return list(accumulate(shape, mul, initial=1))


def transposed_reshape(
    shape: Sequence[int], perm: Sequence[int], after: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """What to reshape x to, and how to transpose that, in place of reshaping the transpose of x to `after`.

    `shape` is that of x. None when axes that become one, or of which one becomes several, do not lie side by side in x.
    """
    turned = tuple(shape[axis] for axis in perm)
    blocks: list[tuple[int, tuple[int, ...]]] = []
    behind = -1
    for new, old in aligned_axes(after, turned):
        sources = [perm[place] for place in old if turned[place] != 1]
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
    """How to transpose x without moving its last axis, what to reshape that to, and how to transpose that, in place of
    reshaping the transpose of x to `after`.

    `shape` is that of x. None unless the last axis comes to the front, behind the first axis at most, as channels do
    for which an image has a plane each, and stays an axis.
    """
    turned, last = tuple(shape[axis] for axis in perm), len(shape) - 1
    groups = [(new, [perm[place] for place in old]) for new, old in aligned_axes(after, turned)]
    of_last = next((group for group in groups if last in group[1]), groups[-1])
    in_front = last in (perm[0], *perm[1:2]) and perm[0] in (0, last)
    if perm[-1] == last or not in_front or [axis for axis in of_last[1] if shape[axis] != 1] != [last]:
        return None
    ordered = [*(group for group in groups if group is not of_last), of_last]
    axes = [axis for new, _ in ordered for axis in new]
    kept = [axis for _, old in ordered for axis in old if axis != last]
    return (*kept, last), tuple(after[axis] for axis in axes), tuple(axes.index(axis) for axis in range(len(after)))


def sliced_before(
    before: tuple[int, ...], after: tuple[int, ...], axis: int, start: int, stop: int
) -> tuple[int, int, int] | None:
    """The axis of `before` and the part of it that are the part from start to stop of an axis of `after`; None when
    that is no block.
    """
    for new, old in aligned_axes(after, before):
        if axis not in new:
            continue
        wide = [place for place in old if before[place] != 1]
        below = prod(after[place] for place in new if place > axis)
        row = prod(before[place] for place in wide[1:])
        if not wide or prod(after[place] for place in new if place < axis) != 1:
            return None
        # The part is contiguous in row-major order, and one block of `before` if both ends fall on its rows.
        if (start * below) % row or (stop * below) % row:
            return None
        return wide[0], start * below // row, stop * below // row
    return None
