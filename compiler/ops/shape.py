"""Operators that only move elements: each result element reads one operand element."""

import math
from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.ir.expr import Expr, as_expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, broadcast_shapes, element
from retune.compiler.te.tensor import CONCATENATED, MOVES_ELEMENTS, Tensor


def _reshape(call: OpCall) -> Lowered:
    """The same elements in row-major order."""
    (x,) = call.types
    shape = call.ints("shape")
    fits = math.prod(shape) == math.prod(x.shape) and all(extent >= 0 for extent in shape)
    call.require(fits, f"cannot become {list(shape)}")

    def build(source: Tensor) -> Tensor:
        # The innermost axes that stay, whose places need no arithmetic.
        kept = 0
        while kept < min(len(shape), len(source.shape)) and shape[-1 - kept] == source.shape[-1 - kept]:
            kept += 1

        def body(*axes: Expr) -> Expr:
            outer, inner = axes[: len(axes) - kept], axes[len(axes) - kept :]
            flat: Expr = te.const(0)
            for axis, extent in zip(outer, shape, strict=False):
                flat = flat * extent + axis
            indices: list[Expr] = []
            split = source.shape[: len(source.shape) - kept]
            for dim, extent in enumerate(split):
                # What the extents decide of these quotients and remainders is simplified when the tensor is lowered.
                quotient = flat // math.prod(split[dim + 1 :])
                indices.append(quotient % extent if dim else quotient)
            indices += inner
            return source[tuple(indices)]

        return te.compute(shape, body, name=call.name, attrs={MOVES_ELEMENTS: True})

    return Lowered(shape, x.dtype, build)


def _transpose(call: OpCall) -> Lowered:
    """Result axis i is operand axis perm[i]."""
    (x,) = call.types
    perm = call.ints("perm")
    call.require(sorted(perm) == list(range(len(x.shape))), f"perm {perm} is no permutation of its axes")
    shape = tuple(x.shape[axis] for axis in perm)

    def build(source: Tensor) -> Tensor:
        inverse = [perm.index(axis) for axis in range(len(perm))]
        return te.compute(
            shape, lambda *i: source[tuple(i[dim] for dim in inverse)], name=call.name, attrs={MOVES_ELEMENTS: True}
        )

    return Lowered(shape, x.dtype, build)


def _concat(call: OpCall) -> Lowered:
    """Operands end to end along an axis."""
    axis, first = call.require_axis(), call.types[0]
    for other in call.types[1:]:
        alike = (*other.shape[:axis], first.shape[axis], *other.shape[axis + 1 :]) == first.shape
        fits = alike and len(other.shape) == len(first.shape) and other.dtype == first.dtype
        call.require(fits, f"the operands may differ in axis {axis} alone")
    extent = sum(operand.shape[axis] for operand in call.types)
    shape = (*first.shape[:axis], extent, *first.shape[axis + 1 :])

    def build(*sources: Tensor) -> Tensor:
        def body(*axes: Expr) -> Expr:
            end = extent
            value: Expr | None = None
            # From the last operand on, so that the outermost choice tests the first end.
            for source in reversed(sources):
                end -= source.shape[axis]
                piece = source[(*axes[:axis], axes[axis] - end, *axes[axis + 1 :])]
                # Lazily, since the index into an operand that is not meant lies outside of it.
                value = piece if value is None else te.if_then_else(axes[axis] < end + source.shape[axis], piece, value)
            assert value is not None
            return value

        return te.compute(shape, body, name=call.name, attrs={CONCATENATED: axis, MOVES_ELEMENTS: True})

    return Lowered(shape, first.dtype, build)


def _slice(call: OpCall) -> Lowered:
    """For each axis elements start, start + step, ... below stop; steps are positive."""
    (x,) = call.types
    starts, stops, steps = call.ints("starts"), call.ints("stops"), call.ints("steps")
    entries = len(starts) == len(stops) == len(steps) == len(x.shape)
    call.require(entries, "starts, stops and steps need one entry an axis")
    for extent, start, stop, step in zip(x.shape, starts, stops, steps, strict=True):
        inside = 0 <= start <= stop <= extent and step >= 1
        call.require(inside, f"cannot slice {extent} elements from {start} to {stop} by {step}")
    # Rounded up, as the negated floor of the negative.
    shape = tuple(-((start - stop) // step) for start, stop, step in zip(starts, stops, steps, strict=True))

    def build(source: Tensor) -> Tensor:
        def body(*i: Expr) -> Expr:
            return source[tuple(index * step + start for index, start, step in zip(i, starts, steps, strict=True))]

        return te.compute(shape, body, name=call.name, attrs={MOVES_ELEMENTS: True})

    return Lowered(shape, x.dtype, build)


def _slice_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    bounds = zip(call.ints("starts"), call.ints("stops"), call.ints("steps"), strict=True)
    return np.asarray(arrays[0][tuple(slice(*bound) for bound in bounds)])


def _pad(call: OpCall) -> Lowered:
    """A border of `value`; one entry an axis."""
    (x,) = call.types
    before, after = call.ints("pads_before"), call.ints("pads_after")
    fits = len(before) == len(after) == len(x.shape) and all(pad >= 0 for pad in (*before, *after))
    call.require(fits, "pads_before and pads_after need one entry an axis, none negative")
    shape = tuple(n + b + a for n, b, a in zip(x.shape, before, after, strict=True))

    def build(source: Tensor) -> Tensor:
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
            # Lazily, since beside the source there is nothing to read.
            return te.if_then_else(te.logical_and(*conditions), inside, te.const(call.number("value"), x.dtype))

        return te.compute(shape, body, name=call.name, attrs={MOVES_ELEMENTS: True})

    return Lowered(shape, x.dtype, build)


def _pad_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    border = tuple(zip(call.ints("pads_before"), call.ints("pads_after"), strict=True))
    return np.pad(arrays[0], border, constant_values=call.number("value"))


def _broadcast_to(call: OpCall) -> Lowered:
    """x repeated to a shape."""
    (x,) = call.types
    shape = call.ints("shape")
    call.require(broadcast_shapes(x.shape, shape) == shape, f"does not broadcast to {list(shape)}")

    def build(source: Tensor) -> Tensor:
        return te.compute(shape, lambda *i: element(source, i, shape), name=call.name)

    return Lowered(shape, x.dtype, build)


def _arange(call: OpCall) -> Lowered:
    """start, start + step, ...: `count` integers."""
    start, count, step = (call.integer(key) for key in ("start", "count", "step"))
    call.require(count >= 0, f"cannot have {count} elements")

    def build() -> Tensor:
        return te.compute((count,), lambda i: te.cast("int64", i) * step + start, name=call.name)

    return Lowered((count,), "int64", build)


def _extents(call: OpCall) -> Lowered:
    """The integers `values`, such as the shape of a tensor."""
    values = call.ints("values")

    def build() -> Tensor:
        # By comparisons, so that the kernel has no table to read.
        def body(i: Expr) -> Expr:
            value: Expr = as_expr(values[-1], "int64")
            for index, number in reversed(list(enumerate(values[:-1]))):
                value = te.select(te.equal(i, index), as_expr(number, "int64"), value)
            return value

        return te.compute((len(values),), body, name=call.name)

    return Lowered((len(values),), "int64", build)


_INJECTIVE = FusionKind.INJECTIVE

OPERATORS = (
    Op(
        "reshape", 1, _INJECTIVE, _reshape, lambda call, arrays: arrays[0].reshape(call.ints("shape")), {"shape": tuple}
    ),
    Op(
        "transpose",
        1,
        _INJECTIVE,
        _transpose,
        lambda call, arrays: arrays[0].transpose(call.ints("perm")),
        {"perm": tuple},
    ),
    Op(
        "concat",
        None,
        _INJECTIVE,
        _concat,
        lambda call, arrays: np.concatenate(arrays, axis=call.integer("axis")),
        {"axis": int},
    ),
    Op("slice", 1, _INJECTIVE, _slice, _slice_array, {"starts": tuple, "stops": tuple, "steps": tuple}),
    Op("pad", 1, _INJECTIVE, _pad, _pad_array, {"pads_before": tuple, "pads_after": tuple, "value": float}),
    Op(
        "broadcast_to",
        1,
        _INJECTIVE,
        _broadcast_to,
        lambda call, arrays: np.broadcast_to(arrays[0], call.ints("shape")),
        {"shape": tuple},
    ),
    Op(
        "arange",
        0,
        _INJECTIVE,
        _arange,
        lambda call, _: call.integer("start") + call.integer("step") * np.arange(call.integer("count")),
        {"start": int, "count": int, "step": int},
    ),
    Op("extents", 0, _INJECTIVE, _extents, lambda call, _: np.asarray(call.ints("values"), "int64"), {"values": tuple}),
)
