"""In: activations. Out: max and average pooling as tensor expressions.

Always: padding is never read: a lazy choice leaves it out of the window.

No padded copy is made: a pool reads each element a few times only, and the choice is the same for all channels, which
are what a kernel vectorises in the NHWC layout.
"""

from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.dtype import is_float
from retune.compiler.ir.expr import Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.tensor import Tensor


def max_pool2d(call: OpCall) -> Tensor:
    """The largest element of each window that lies inside the input."""
    return _pool(call, call.pair("dilations"), maximum=True, name=call.name)


def avg_pool2d(call: OpCall) -> Tensor:
    """Window sums over the number of elements inside the input, or over the window's size with `count_include_pad`."""
    total = _pool(call, (1, 1), maximum=False, name=f"{call.name}_sum")
    height, width = call.pair("kernel")

    def body(*axes: Expr) -> Expr:
        if call.attrs.get("count_include_pad") or not _windows_leave(call, (1, 1)):
            return total[axes] * (1.0 / (height * width))
        return total[axes] / te.cast(call.dtype, _elements_inside(call, axes))

    return te.compute(call.shape, body, name=call.name)


def _first_spatial(call: OpCall) -> int:
    return 1 if call.text("layout") == "NHWC" else 2


def _pool(call: OpCall, dilations: tuple[int, int], *, maximum: bool, name: str) -> Tensor:
    data = call.tensor(0)
    first = _first_spatial(call)
    height, width = call.pair("kernel")
    window = (te.reduce_axis(height, "ry"), te.reduce_axis(width, "rx"))
    outside = float("-inf") if maximum else 0.0
    if not is_float(data.dtype):
        outside = int(np.iinfo(data.dtype).min) if maximum else 0
    leaves = _windows_leave(call, dilations)

    def body(*axes: Expr) -> Expr:
        indices = list(axes)
        for place in range(2):
            indices[first + place] = _position(call, axes, place, window[place] * dilations[place])
        value = data[tuple(indices)]
        if leaves:
            value = te.if_then_else(_inside(indices, data.shape, leaves), value, outside)
        return te.max(value, window) if maximum else te.sum(value, window)

    return te.compute(call.shape, body, name=name)


def _position(call: OpCall, axes: Sequence[Expr], place: int, offset: Expr) -> Expr:
    """The row (`place` 0) or column (1) of the input at `offset` into the window of output element `axes`."""
    pads = call.ints("pads")[place]
    position = axes[_first_spatial(call) + place] * call.pair("strides")[place] + offset
    return position - pads if pads else position


def _windows_leave(call: OpCall, dilations: tuple[int, int]) -> list[tuple[int, bool, bool]]:
    """(axis, below 0, past the end) of the axes along which some window leaves the input."""
    first = _first_spatial(call)
    found = []
    for place in range(2):
        reach = (call.pair("kernel")[place] - 1) * dilations[place]
        last = (call.shape[first + place] - 1) * call.pair("strides")[place] + reach
        below = call.ints("pads")[place] > 0
        above = last - call.ints("pads")[place] >= call.tensor(0).shape[first + place]
        if below or above:
            found.append((first + place, below, above))
    return found


def _inside(indices: Sequence[Expr], shape: Sequence[int], leaves: Sequence[tuple[int, bool, bool]]) -> Expr:
    conditions = []
    for axis, below, above in leaves:
        if below:
            conditions.append(indices[axis] >= 0)
        if above:
            conditions.append(indices[axis] < shape[axis])
    return te.logical_and(*conditions)


def _elements_inside(call: OpCall, axes: Sequence[Expr]) -> Expr:
    first = _first_spatial(call)
    count: Expr = te.const(1)
    for place in range(2):
        start = _position(call, axes, place, te.const(0))
        stop = te.minimum(start + call.pair("kernel")[place], call.tensor(0).shape[first + place])
        count = count * (stop - te.maximum(start, 0))
    return count
