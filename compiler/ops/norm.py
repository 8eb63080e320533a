"""Normalizations; the variance is the mean of squared differences from the mean, which does not cancel.

Those of halves compute in float32: a sum of squares soon exceeds the largest float16.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.core.dtype import sum_type
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, reciprocal, widen
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import Tensor


def _normalize(call: OpCall) -> Lowered:
    """c / sqrt(mean(c * c) + epsilon) over axes, with c = x - mean(x) when centred, else x."""
    (x,) = call.types
    axes = call.require_axes()

    def build(source: Tensor) -> Tensor:
        return _normal_values(source, axes, call.number("epsilon"), centred=call.flag("centred"), name=call.name)

    return Lowered(x.shape, x.dtype, build)


def layer_norm(source: Tensor, scale: Tensor, bias: Tensor, axis: int, epsilon: float, name: str = "norm") -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the dimensions from `axis` on."""
    first = axis % len(source.shape)
    axes = tuple(range(first, len(source.shape)))
    normal = _normal_values(source, axes, epsilon, centred=True, name=f"{name}_normal")
    return te.compute(source.shape, lambda *i: normal[i] * scale[i[first:]] + bias[i[first:]], name=name)


def _normal_values(
    source: Tensor, axes: tuple[int, ...], epsilon: float, *, centred: bool, name: str, axis: int = -1, groups: int = 0
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon), or x / sqrt(mean(x * x) + epsilon) if not `centred`.

    Means are over `axes`; with `groups`, also over each of so many groups of neighbors along `axis`.
    """
    other_axes = [dim for dim in range(len(source.shape)) if dim not in axes]
    outer = tuple(source.shape[dim] for dim in other_axes)
    size = source.shape[axis] // groups if groups else 1
    wide = sum_type(source.dtype)
    # A factor in place of a division for every row.
    share = reciprocal(size * math.prod(source.shape[axis] for axis in axes), wide)

    def row(point: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(point[dim] for dim in other_axes)

    def point(row: tuple[Expr, ...], inner: list[Axis]) -> tuple[Expr, ...]:
        at: dict[int, Expr] = {**dict(zip(other_axes, row, strict=True)), **dict(zip(axes, inner, strict=True))}
        return tuple(at[dim] for dim in range(len(source.shape)))

    def group_sum(parts: Tensor) -> Callable[[tuple[Expr, ...]], Expr]:
        """A function of a row that gives its part of the sums `parts`: its own sum, or that of its group."""
        if not groups:
            return lambda i: parts[i]
        position = other_axes.index(axis)
        member = te.reduce_axis(size, "member")

        def total(*i: Expr) -> Expr:
            return te.sum(parts[(*i[:position], i[position] * size + member, *i[position + 1 :])], member)

        sums = te.compute((*outer[:position], groups, *outer[position + 1 :]), total, name=f"{parts.name}_groups")
        return lambda i: sums[(*i[:position], i[position] // size, *i[position + 1 :])]

    # Two sets of axes, since each of the two sums is a compute of its own.
    k = [te.reduce_axis(source.shape[axis], f"k{axis}") for axis in axes]
    q = [te.reduce_axis(source.shape[axis], f"q{axis}") for axis in axes]
    mean: Tensor | None = None
    if centred:
        total = group_sum(
            te.compute(outer, lambda *i: te.sum(te.cast(wide, source[point(i, k)]), k), name=f"{name}_sum")
        )
        # A mean and a factor for each element of `axis`, so that those who read them are in vectors.
        mean = te.compute(outer, lambda *i: total(i) * share, name=f"{name}_mean")

    def difference(at: tuple[Expr, ...]) -> Expr:
        value = te.cast(wide, source[at])
        return value if mean is None else value - mean[row(at)]

    def square(*i: Expr) -> Expr:
        distance = difference(point(i, q))
        return te.sum(distance * distance, q)

    # Two passes: E[x^2] - E[x]^2 would cancel where the mean is large against the deviation.
    squares = group_sum(te.compute(outer, square, name=f"{name}_squares"))
    # One root a row; each element costs a subtraction and a product.
    factor = te.compute(outer, lambda *i: te.rsqrt(squares(i) * share + epsilon), name=f"{name}_factor")
    return te.compute(source.shape, lambda *i: te.cast(source.dtype, difference(i) * factor[row(i)]), name=name)


def _group_normalize(call: OpCall) -> Lowered:
    """c / sqrt(mean(c * c) + epsilon) over axes and each group of neighbors along `axis`, with c = x - mean(x)."""
    (x,) = call.types
    axes, axis, groups = call.require_axes(), call.require_axis(), call.integer("groups")
    fits = axis not in axes and groups > 0 and x.shape[axis] % groups == 0
    call.require(fits, f"axis {axis} must be none of the axes {axes} and divide into {groups} groups")

    def build(source: Tensor) -> Tensor:
        epsilon = call.number("epsilon")
        return _normal_values(source, axes, epsilon, centred=True, name=call.name, axis=axis, groups=groups)

    return Lowered(x.shape, x.dtype, build)


def _normalize_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    return _normalized_array(arrays[0], call.ints("axes"), call.number("epsilon"), centred=call.flag("centred"))


def _group_normalize_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    axis, groups = call.integer("axis"), call.integer("groups")
    split = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    axes = (axis + 1, *(dim + (dim > axis) for dim in call.ints("axes")))
    return _normalized_array(split, axes, call.number("epsilon"), centred=True).reshape(x.shape)


def _normalized_array(x: Array, axes: tuple[int, ...], epsilon: float, *, centred: bool) -> Array:
    wide = widen(x)
    if centred:
        wide = wide - wide.mean(axis=axes, keepdims=True)
    return np.asarray(wide / np.sqrt((wide * wide).mean(axis=axes, keepdims=True) + wide.dtype.type(epsilon)))


def _batch_norm(call: OpCall) -> Lowered:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of (x, scale, bias, mean, variance) along an axis."""
    x, *statistics = call.types
    axis = call.integer("axis")
    fits = 0 <= axis < len(x.shape) and all(s.shape == (x.shape[axis],) for s in statistics)
    call.require(fits, f"scale, bias, mean and variance need one element for each of axis {axis}")
    epsilon = call.number("epsilon")

    def build(data: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        def body(*i: Expr) -> Expr:
            factors = (tensor[i[axis]] for tensor in (scale, bias, mean, variance))
            value, gain, shift, middle, spread = (te.cast(sum_type(x.dtype), read) for read in (data[i], *factors))
            return te.cast(x.dtype, (value - middle) / te.sqrt(spread + epsilon) * gain + shift)

        return te.compute(x.shape, body, name=call.name)

    return Lowered(x.shape, x.dtype, build)


def _batch_norm_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, *statistics = map(widen, arrays)
    column = [1] * x.ndim
    column[call.integer("axis")] = -1
    scale, bias, mean, variance = (s.reshape(column) for s in statistics)
    return np.asarray((x - mean) / np.sqrt(variance + call.number("epsilon")) * scale + bias)


OPERATORS = (
    Op(
        "normalize",
        1,
        FusionKind.REDUCTION,
        _normalize,
        _normalize_array,
        {"axes": tuple, "epsilon": float, "centred": bool},
    ),
    Op(
        "group_normalize",
        1,
        FusionKind.REDUCTION,
        _group_normalize,
        _group_normalize_array,
        {"axes": tuple, "axis": int, "groups": int, "epsilon": float},
    ),
    Op("batch_norm", 5, FusionKind.OPAQUE, _batch_norm, _batch_norm_array, {"axis": int, "epsilon": float}),
)
