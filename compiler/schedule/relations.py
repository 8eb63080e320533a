"""In: how the loops of a stage came from its axes, and the extents of the axes. Out: extents of all loops, and the axes
as expressions of the loops that are left.

Always: extents are polymorphic, as in `State`.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from retune.compiler.ir.expr import Expr, const
from retune.compiler.schedule.state import FuseRelation, Number, Relation, SplitRelation, Stage
from retune.compiler.te.tensor import Axis, ComputeOp


def ceil_div(value: Number, divisor: Number) -> Number:
    """`value / divisor` rounded up, for ints and arrays."""
    return -(-value // divisor)


def split_extents(extent: Number | None, relation: SplitRelation) -> list[Number | None]:
    """Extents of the parts. No part runs further than the whole, so a length above what is left is cut."""
    count = len(relation.parts)
    extents: list[Number | None] = [None] * count
    order = range(count - 1, 0, -1) if relation.inner_to_outer else range(count - 1)
    rest = extent
    for part in order:
        length = relation.lengths[part - 1 if relation.inner_to_outer else part]
        if rest is None or length is None:
            if length is not None and extent is None:
                extents[part] = length
            rest = None
            continue
        extents[part] = np.minimum(length, rest) if _is_array(length, rest) else min(length, rest)
        rest = ceil_div(rest, length)
    extents[0 if relation.inner_to_outer else count - 1] = rest
    return extents


def _is_array(*values: Number) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


def part_stride(relation: SplitRelation, level: int, sizes: Mapping[str, Number]) -> Number:
    """How many points one turn of the next outer part skips, per turn of part `level`: its uncut length."""
    if relation.inner_to_outer:
        length = relation.lengths[level - 1]
        return 1 if length is None else length
    return sizes[relation.parts[level]]


def loop_sizes(relations: Sequence[Relation], axes: Mapping[str, Number]) -> dict[str, Number | None]:
    """Extents of the axes and of everything they were split or fused into; None where a length is unknown."""
    sizes: dict[str, Number | None] = {"": 1, **axes}  # the loop of a stage without axes has no name
    for relation in relations:
        if isinstance(relation, FuseRelation):
            product: Number | None = 1
            for part in relation.parts:
                extent = sizes[part]
                product = None if product is None or extent is None else product * extent
            sizes[relation.fused] = product
        else:
            extents = split_extents(sizes[relation.parent], relation)
            sizes.update(zip(relation.parts, extents, strict=True))
    return sizes


def axis_exprs(relations: Sequence[Relation], sizes: Mapping[str, int], loops: Mapping[str, Expr]) -> dict[str, Expr]:
    """Every axis, and everything it was split or fused into, over `loops`, the expressions of the loops that are left.

    A part of a loop that was fused and split again is a quotient or remainder.
    """
    values = dict(loops)
    for relation in reversed(relations):
        if isinstance(relation, SplitRelation):
            total: Expr = const(0)
            for part, stride in zip(relation.parts, _strides(relation, sizes), strict=True):
                total = total + values[part] * stride
            values[relation.parent] = total
        elif relation.fused in values:
            stride = 1
            for part in reversed(relation.parts):
                quotient = values[relation.fused] // stride
                values[part] = quotient if part == relation.parts[0] else quotient % sizes[part]
                stride *= sizes[part]
    return values


def overrunning(relations: Sequence[Relation], sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """What was split into parts that together run further than it does, with its extent."""
    for relation in relations:
        if isinstance(relation, SplitRelation):
            strides = _strides(relation, sizes)
            last = sum((sizes[part] - 1) * stride for part, stride in zip(relation.parts, strides, strict=True))
            if last >= sizes[relation.parent]:
                yield relation.parent, sizes[relation.parent]


def rejoined(stage: Stage) -> Iterator[tuple[str, Expr]]:
    """What was fused from axes of the operation, by name, with the index over these axes that it is."""
    if not isinstance(stage.op, ComputeOp):
        return
    axes = {axis.name: axis for axis in stage.op.axes}
    for relation in stage.relations:
        if isinstance(relation, FuseRelation) and all(part in axes for part in relation.parts):
            yield relation.fused, joined_index([axes[part] for part in relation.parts])


def joined_index(axes: Sequence[Axis]) -> Expr:
    """The number of a point of several axes, the last one counting fastest."""
    total: Expr = const(0)
    for axis in axes:
        total = total * axis.extent + axis
    return total


def buffer_strides(stage: Stage, shape: Sequence[Number]) -> tuple[Number, ...] | None:
    """Strides, in elements, of a stage's buffer of `shape`; None: row-major without padding."""
    if stage.alignment is None or not isinstance(stage.op, ComputeOp):
        return None
    axis = [axis.name for axis in stage.op.axes].index(stage.alignment.axis)
    return padded_strides(shape, axis, stage.alignment.factor, stage.alignment.offset)


def padded_strides(shape: Sequence[Number], axis: int, factor: int, offset: int) -> tuple[Number, ...]:
    """Row-major strides of `shape`, that of dimension `axis` padded to `offset` more than a multiple of `factor`."""
    strides: list[Number] = []
    stride: Number = 1
    for dim in range(len(shape) - 1, -1, -1):
        if dim == axis:
            stride = stride + (offset - stride) % factor
        strides.append(stride)
        stride = stride * shape[dim]
    return tuple(reversed(strides))


def _strides(relation: SplitRelation, sizes: Mapping[str, int]) -> list[int]:
    """How many points one turn of each part moves on, outermost first."""
    strides = [1]
    for level in range(len(relation.parts) - 1, 0, -1):
        stride = part_stride(relation, level, sizes)
        strides.append(strides[-1] * (stride if isinstance(stride, int) else int(stride.reshape(()))))
    return strides[::-1]
