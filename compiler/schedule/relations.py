"""What splits and fusions make of axes: the extents of the new loops, and each axis as an expression of them.

Extents are polymorphic, as in `State`.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import TypeVar

import numpy as np

from retune.compiler.ir.expr import Expr, const
from retune.compiler.schedule.linear import Linear
from retune.compiler.schedule.state import FuseRelation, Number, Relation, SplitRelation, Stage
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp

Value = TypeVar("Value", Expr, Linear)


def ceil_div(value: Number, divisor: Number) -> Number:
    """`value / divisor` rounded up, for ints and arrays."""
    return -(-value // divisor)


def split_extents(extent: Number | None, relation: SplitRelation) -> list[Number | None]:
    """Extents of the parts. No part runs further than the whole, so a length beyond the remaining extent is cut."""
    count = len(relation.parts)
    extents: list[Number | None] = [None] * count
    order = range(count - 1, 0, -1) if relation.inner_to_outer else range(count - 1)
    remaining = extent
    for part in order:
        length = relation.lengths[part - 1 if relation.inner_to_outer else part]
        if remaining is None or length is None:
            if length is not None and extent is None:
                extents[part] = length
            remaining = None
            continue
        extents[part] = np.minimum(length, remaining) if _is_array(length, remaining) else min(length, remaining)
        # Rounded up: the last part may run past the end, where a guard stops it.
        remaining = ceil_div(remaining, length)
    extents[0 if relation.inner_to_outer else count - 1] = remaining
    return extents


def known_product(numbers: Iterable[Number | None]) -> Number | None:
    """The product, None if a number is unknown."""
    product: Number | None = 1
    for number in numbers:
        product = None if product is None or number is None else product * number
    return product


def _is_array(*values: Number) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


def part_stride(relation: SplitRelation, level: int, sizes: Mapping[str, Number]) -> Number:
    """Points of the next outer part per iteration of part `level`: its uncut length."""
    if relation.inner_to_outer:
        length = relation.lengths[level - 1]
        return 1 if length is None else length
    return sizes[relation.parts[level]]


def loop_sizes(relations: Sequence[Relation], axes: Mapping[str, Number]) -> dict[str, Number | None]:
    """Extents of the axes and of everything they were split or fused into; None where a length is unknown."""
    sizes: dict[str, Number | None] = {"": 1, **axes}  # the loop of a stage without axes has no name
    for relation in relations:
        if isinstance(relation, FuseRelation):
            sizes[relation.fused] = known_product([sizes[part] for part in relation.parts])
        else:
            extents = split_extents(sizes[relation.parent], relation)
            sizes.update(zip(relation.parts, extents, strict=True))
    return sizes


def unsplit(
    relations: Sequence[Relation],
    sizes: Mapping[str, Number],
    loops: Mapping[str, Value],
    parts_of: Callable[[FuseRelation, Value], Iterable[Value]],
    scale: Callable[[Value, Number], Value],
) -> dict[str, Value]:
    """The values of everything that was split or fused, over those of the remaining `loops`.

    `parts_of` gives the values of the parts of a fused loop that is in `loops` or was split again, as quotients and
    remainders. `scale` multiplies a value by a number.
    """
    values = dict(loops)
    # Backwards in time: the last transformation is undone first.
    for relation in reversed(relations):
        if isinstance(relation, FuseRelation):
            if relation.fused in values:
                values.update(zip(relation.parts, parts_of(relation, values[relation.fused]), strict=True))
            continue
        terms = map(scale, (values[part] for part in relation.parts), _strides(relation, sizes))
        values[relation.parent] = reduce(operator.add, terms)
    return values


def axis_exprs(relations: Sequence[Relation], sizes: Mapping[str, int], loops: Mapping[str, Expr]) -> dict[str, Expr]:
    """Every axis, and everything it was split or fused into, over `loops`, the expressions of the remaining loops.

    A part of a loop that was fused and split again is a quotient or remainder.
    """

    def parts_of(relation: FuseRelation, fused: Expr) -> Iterator[Expr]:
        # Digits of the fused loop in mixed radix, the first part highest.
        stride = prod(sizes[part] for part in relation.parts)
        for part in relation.parts:
            stride //= sizes[part]
            quotient = fused // stride
            yield quotient if part == relation.parts[0] else quotient % sizes[part]

    def scale(value: Expr, stride: Number) -> Expr:
        return value * _as_int(stride)

    return unsplit(relations, sizes, loops, parts_of, scale)


def overrunning(relations: Sequence[Relation], sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Everything that was split into parts which together run past its end, with its extent."""
    for relation in relations:
        if isinstance(relation, SplitRelation):
            strides = map(_as_int, _strides(relation, sizes))
            # The last point that all parts reach together.
            last = sum((sizes[part] - 1) * stride for part, stride in zip(relation.parts, strides, strict=True))
            if last >= sizes[relation.parent]:
                yield relation.parent, sizes[relation.parent]


def rejoin_factors(stage: Stage) -> Iterator[tuple[str, Expr]]:
    """Loops fused from axes of the operation, by name, each with its index over these axes."""
    if not isinstance(stage.op, ComputeOp):
        return
    axes = {axis.name: axis for axis in stage.op.axes}
    for relation in stage.relations:
        if isinstance(relation, FuseRelation) and all(part in axes for part in relation.parts):
            yield relation.fused, joined_index([axes[part] for part in relation.parts])


def joined_index(axes: Sequence[Axis]) -> Expr:
    """The index of a point of several axes, the last axis fastest."""
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
            # The least stride that is not below the dense stride and leaves `offset` modulo `factor`.
            stride = stride + (offset - stride) % factor
        strides.append(stride)
        stride = stride * shape[dim]
    return tuple(reversed(strides))


def _strides(relation: SplitRelation, sizes: Mapping[str, Number]) -> list[Number]:
    """Points per iteration of each part, outermost first."""
    strides: list[Number] = [1]
    for level in range(len(relation.parts) - 1, 0, -1):
        strides.append(strides[-1] * part_stride(relation, level, sizes))
    return strides[::-1]


def _as_int(number: Number) -> int:
    return number if isinstance(number, int) else int(number.reshape(()))
