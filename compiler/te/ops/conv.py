"""In: activations and a weight. Out: a 2-D convolution as tensor expressions.

Always: padding is a stage of its own, made only where a window leaves the input.

Layouts are those of `compiler.graph.ops`: NHWC with (KH, KW, I/groups, O) weights or (KH, KW, C) ones for a depthwise
convolution, NCHW with (O, I/groups, KH, KW). Reduce axes of extent 1 are left out, so a 1×1 convolution is a matmul.
"""

from dataclasses import dataclass
from typing import Any

from compiler import te
from compiler.ir.expr import Expr
from compiler.te.ops.call import OpCall
from compiler.te.tensor import Axis, Tensor


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Sizes of a convolution; pairs are (vertical, horizontal)."""

    channels_last: bool
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    output: tuple[int, int]
    inputs_per_group: int
    outputs_per_group: int
    grouped: bool

    def needed(self, axis: int) -> int:
        """How many rows or columns of the padded input the windows cover."""
        return (self.output[axis] - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1


def conv2d(call: OpCall) -> Tensor:
    """conv2d(x, weight): grouped, strided, dilated, zero-padded."""
    data, weight = call.tensor(0), call.tensor(1)
    geometry = _geometry(call)
    data = _padded(call, data, geometry)
    height, width = geometry.kernel
    axes = {
        name: te.reduce_axis(extent, name)
        for name, extent in (("ry", height), ("rx", width), ("rc", geometry.inputs_per_group))
        if extent > 1
    }

    def product(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        row = y * geometry.strides[0] + axes.get("ry", te.const(0)) * geometry.dilations[0]
        column = x * geometry.strides[1] + axes.get("rx", te.const(0)) * geometry.dilations[1]
        channel: Expr = axes.get("rc", te.const(0))
        if geometry.grouped:
            channel = c // geometry.outputs_per_group * geometry.inputs_per_group + channel
        value = data[n, row, column, channel] if geometry.channels_last else data[n, channel, row, column]
        return value * _weight_at(weight, geometry, axes, c)

    def body(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return te.sum(product(n, y, x, c), list(axes.values())) if axes else product(n, y, x, c)

    attrs: dict[str, Any] = call.layout_free(1)
    if geometry.channels_last:
        return te.compute(call.shape, body, name=call.name, attrs=attrs)
    return te.compute(call.shape, lambda n, c, y, x: body(n, y, x, c), name=call.name, attrs=attrs)


def _geometry(call: OpCall) -> _Geometry:
    weight = call.tensor(1).shape
    groups = call.integer("groups")
    channels_last = call.text("layout") == "NHWC"
    if channels_last:
        kernel, outputs = (weight[0], weight[1]), weight[-1]
        inputs = weight[2] if len(weight) == 4 else 1
        extents = (call.shape[1], call.shape[2])
    else:
        kernel, outputs, inputs = (weight[2], weight[3]), weight[0], weight[1]
        extents = (call.shape[2], call.shape[3])
    return _Geometry(
        channels_last=channels_last,
        kernel=kernel,
        strides=call.pair("strides"),
        dilations=call.pair("dilations"),
        output=extents,
        inputs_per_group=inputs,
        outputs_per_group=outputs // groups,
        grouped=groups > 1,
    )


def _weight_at(weight: Tensor, geometry: _Geometry, axes: dict[str, Axis], c: Expr) -> Expr:
    zero = te.const(0)
    row, column, channel = (axes.get(name, zero) for name in ("ry", "rx", "rc"))
    if not geometry.channels_last:
        return weight[c, channel, row, column]
    return weight[row, column, c] if len(weight.shape) == 3 else weight[row, column, channel, c]


def _padded(call: OpCall, data: Tensor, geometry: _Geometry) -> Tensor:
    """The input with zeros around it, cut to what the windows cover; the input itself when no window leaves it."""
    top, left, _, _ = call.ints("pads")
    first = 1 if geometry.channels_last else 2
    before = (top, left)
    inside = (data.shape[first], data.shape[first + 1])
    needed = (geometry.needed(0), geometry.needed(1))
    if not any(before) and all(want <= have for want, have in zip(needed, inside, strict=True)):
        return data
    shape = (*data.shape[:first], *needed, *data.shape[first + 2 :])

    def body(a: Expr, b: Expr, c: Expr, d: Expr) -> Expr:
        indices = [a, b, c, d]
        conditions = []
        for place in range(2):
            index = indices[first + place]
            if before[place]:
                conditions.append(index >= before[place])
            if needed[place] > before[place] + inside[place]:
                conditions.append(index < before[place] + inside[place])
            indices[first + place] = index - before[place]
        return te.if_then_else(te.logical_and(*conditions), data[tuple(indices)], 0.0)

    return te.compute(shape, body, name=f"{call.name}_pad")
