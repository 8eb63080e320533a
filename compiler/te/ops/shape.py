"""In: tensors. Out: operators that only move elements, as index arithmetic.

Always: each result element reads one operand element.
"""

import math

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.tensor import Tensor

CONCATENATED = "concat_axis"
"""The attribute of a concatenation's operation that holds its axis: who reads it may read its operands instead."""


def reshape(call: OpCall) -> Tensor:
    """The same elements in row-major order."""
    source = call.tensor(0)

    def body(*axes: Expr) -> Expr:
        flat: Expr = te.const(0)
        for axis, extent in zip(axes, call.shape, strict=True):
            flat = flat * extent + axis
        indices = []
        for place, extent in enumerate(source.shape):
            quotient = flat // math.prod(source.shape[place + 1 :])
            indices.append(quotient % extent if place else quotient)
        return source[tuple(indices)]

    return te.compute(call.shape, body, name=call.name)


def transpose(call: OpCall) -> Tensor:
    """Result axis i is operand axis perm[i]."""
    source = call.tensor(0)
    perm = call.ints("perm")
    return te.compute(
        call.shape, lambda *i: source[tuple(i[perm.index(axis)] for axis in range(len(perm)))], name=call.name
    )


def concat(call: OpCall) -> Tensor:
    """Operands end to end along `axis`."""
    axis = call.integer("axis")
    sources = [call.tensor(place) for place in range(len(call.operands))]

    def body(*axes: Expr) -> Expr:
        end = call.shape[axis]
        value: Expr | None = None
        for source in reversed(sources):
            end -= source.shape[axis]
            piece = source[(*axes[:axis], axes[axis] - end, *axes[axis + 1 :])]
            value = piece if value is None else te.if_then_else(axes[axis] < end + source.shape[axis], piece, value)
        assert value is not None
        return value

    return te.compute(call.shape, body, name=call.name, attrs={CONCATENATED: axis})


def slice_(call: OpCall) -> Tensor:
    """Elements start, start + step, ... of every axis."""
    source = call.tensor(0)
    starts, steps = call.ints("starts"), call.ints("steps")
    return te.compute(
        call.shape,
        lambda *i: source[tuple(index * step + start for index, start, step in zip(i, starts, steps, strict=True))],
        name=call.name,
    )


def pad(call: OpCall) -> Tensor:
    """A border of `value` around the operand."""
    source = call.tensor(0)
    before = call.ints("pads_before")
    after = call.ints("pads_after")

    def body(*axes: Expr) -> Expr:
        conditions = []
        for axis, extent, low, high in zip(axes, source.shape, before, after, strict=True):
            if low:
                conditions.append(axis >= low)
            if high:
                conditions.append(axis < low + extent)
        inside = source[tuple(axis - low for axis, low in zip(axes, before, strict=True))]
        if not conditions:
            return inside
        return te.if_then_else(te.logical_and(*conditions), inside, te.const(call.number("value"), call.dtype))

    return te.compute(call.shape, body, name=call.name)


def broadcast_to(call: OpCall) -> Tensor:
    """The operand repeated to the result's shape by NumPy's rule."""
    return te.compute(call.shape, lambda *i: call.element(0, i), name=call.name)
