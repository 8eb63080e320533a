"""Max and average pooling.

Padding is never read: a lazy choice leaves it out of the window. No padded copy is made: a pool reads each element a
few times only, and the choice is the same for all channels, which are what a kernel vectorizes in the NHWC layout.
"""

import math
from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.core.dtype import is_float, sum_type
from retune.compiler.ir.dims import may_be_positive
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.conv import (
    channels_last,
    from_channels_last,
    is_channels_last,
    require_layout,
    require_windows,
    window_view,
)
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, Shape, reciprocal, widen
from retune.compiler.te.tensor import Tensor


def _dilations(call: OpCall) -> Shape:
    return call.ints("dilations") if "dilations" in call.attrs else (1, 1)


def _shape(call: OpCall) -> Shape:
    (x,) = call.types
    axes = require_layout(call, 2)
    extents = require_windows(call, call.ints("kernel"), _dilations(call), axes)
    return (x.shape[0], *extents, x.shape[3]) if is_channels_last(call) else (*x.shape[:2], *extents)


def _max_pool2d(call: OpCall) -> Lowered:
    """Maximum of a window; padding never wins."""
    shape = _shape(call)
    return Lowered(shape, call.types[0].dtype, lambda x: _pool(call, shape, x, maximum=True, name=call.name))


def _avg_pool2d(call: OpCall) -> Lowered:
    """The sum of a window over its number of elements inside x, or over all of them with `count_include_pad`."""
    shape, dtype = _shape(call), call.types[0].dtype

    def build(x: Tensor) -> Tensor:
        total = _pool(call, shape, x, maximum=False, name=f"{call.name}_sum")
        height, width = call.ints("kernel")

        def body(*axes: Expr) -> Expr:
            if call.flag("count_include_pad") or not _windows_leave(call, shape, x.shape):
                # Every window has the same number of elements: a constant factor instead of a division.
                return te.cast(dtype, total[axes] * reciprocal(height * width, total.dtype))
            return te.cast(dtype, total[axes] / te.cast(total.dtype, _elements_inside(call, axes, x.shape)))

        return te.compute(shape, body, name=call.name)

    return Lowered(shape, dtype, build)


def _first_spatial(call: OpCall) -> int:
    return 1 if is_channels_last(call) else 2


def _pool(call: OpCall, shape: Shape, data: Tensor, *, maximum: bool, name: str) -> Tensor:
    first, dilations = _first_spatial(call), _dilations(call)
    height, width = call.ints("kernel")
    window = (te.reduce_axis(height, "ry"), te.reduce_axis(width, "rx"))
    outside = float("-inf") if maximum else 0.0
    if not is_float(data.dtype):
        outside = int(np.iinfo(data.dtype).min) if maximum else 0
    leaves = _windows_leave(call, shape, data.shape)

    def body(*axes: Expr) -> Expr:
        indices = list(axes)
        for dim in range(2):
            indices[first + dim] = _position(call, axes, dim, window[dim] * dilations[dim])
        value: Expr = data[tuple(indices)]
        if leaves:
            # The identity of the reduction stands for padding, so it never wins a maximum nor adds to a sum.
            value = te.if_then_else(_inside(indices, data.shape, leaves), value, outside)
        # A sum of halves may exceed them, while their mean does not.
        return te.max(value, window) if maximum else te.sum(te.cast(sum_type(data.dtype), value), window)

    return te.compute(shape, body, name=name)


def _position(call: OpCall, axes: Sequence[Expr], dim: int, offset: Expr) -> Expr:
    """The row (`dim` 0) or column (1) of the input at `offset` into the window of output element `axes`."""
    pads = call.ints("pads")[dim]
    position = axes[_first_spatial(call) + dim] * call.ints("strides")[dim] + offset
    return position - pads if pads else position


def _windows_leave(call: OpCall, shape: Shape, data: Shape) -> list[tuple[int, bool, bool]]:
    """(axis, below 0, past the end) of the axes along which some window leaves the input."""
    first = _first_spatial(call)
    axes = []
    for dim in range(2):
        reach = (call.ints("kernel")[dim] - 1) * _dilations(call)[dim]
        last = (shape[first + dim] - 1) * call.ints("strides")[dim] + reach
        below = call.ints("pads")[dim] > 0
        # Of a symbolic extent: if any is left. A test that is always true is right, too.
        above = may_be_positive(last - call.ints("pads")[dim] - data[first + dim] + 1)
        if below or above:
            axes.append((first + dim, below, above))
    return axes


def _inside(indices: Sequence[Expr], shape: Sequence[int], leaves: Sequence[tuple[int, bool, bool]]) -> Expr:
    conditions = []
    for axis, below, above in leaves:
        if below:
            conditions.append(indices[axis] >= 0)
        if above:
            conditions.append(indices[axis] < shape[axis])
    return te.logical_and(*conditions)


def _elements_inside(call: OpCall, axes: Sequence[Expr], data: Shape) -> Expr:
    first = _first_spatial(call)
    count: Expr = te.const(1)
    for dim in range(2):
        start = _position(call, axes, dim, te.const(0))
        stop = te.minimum(start + call.ints("kernel")[dim], data[first + dim])
        count = count * (stop - te.maximum(start, 0))
    return count


def _max_pool2d_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x = channels_last(call, arrays[0])
    lowest = -math.inf if is_float(x.dtype.name) else np.iinfo(x.dtype).min
    windows = window_view(call, x, call.ints("kernel"), call.ints("dilations"), lowest)
    return from_channels_last(call, windows.max(axis=(-2, -1)))


def _avg_pool2d_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x = channels_last(call, arrays[0])
    x = widen(x)
    kernel = call.ints("kernel")
    total = window_view(call, x, kernel, (1, 1), 0).sum(axis=(-2, -1))
    if call.flag("count_include_pad"):
        return from_channels_last(call, np.asarray(total / (kernel[0] * kernel[1])))
    inside = window_view(call, np.ones_like(x), kernel, (1, 1), 0).sum(axis=(-2, -1))
    return from_channels_last(call, np.asarray(total / inside))


_ATTRS = {"kernel": tuple, "strides": tuple, "pads": tuple, "layout": str}

OPERATORS = (
    Op("max_pool2d", 1, FusionKind.REDUCTION, _max_pool2d, _max_pool2d_array, {**_ATTRS, "dilations": tuple}),
    Op("avg_pool2d", 1, FusionKind.REDUCTION, _avg_pool2d, _avg_pool2d_array, {**_ATTRS, "count_include_pad": bool}),
)
