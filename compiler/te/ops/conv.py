"""In: activations and a weight. Out: a convolution of one, two or three dimensions as tensor expressions.

Always: padding is a stage of its own, made only where a window leaves the input.

Layouts are those of `retune.compiler.graph.ops`: channels last (NWC, NHWC, NDHWC) with (*kernel, I/groups, O) weights
or (*kernel, C) ones for a depthwise convolution, channels first (NCHW) with (O, I/groups, *kernel). Reduce axes of
extent 1 are left out, so a 1×1 convolution is a matmul.
"""

from collections.abc import Callable
from dataclasses import dataclass

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.visit import substitute
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.ops.shape import CONCATENATED
from retune.compiler.te.tensor import Axis, ComputeOp, Tensor

_CHANNELS_LAST = ("NWC", "NHWC", "NDHWC")
_REDUCE_NAMES = ("rz", "ry", "rx")
_Body = Callable[[Expr, tuple[Expr, ...], Expr], Expr]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Sizes of a convolution, a number for every spatial dimension."""

    channels_last: bool
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    output: tuple[int, ...]
    inputs_per_group: int
    outputs_per_group: int
    grouped: bool

    def needed(self, dim: int) -> int:
        """How many elements of the padded input the windows cover."""
        return (self.output[dim] - 1) * self.strides[dim] + (self.kernel[dim] - 1) * self.dilations[dim] + 1


def convolution(call: OpCall) -> Tensor:
    """conv(x, weight): grouped, strided, dilated, zero-padded. `pads` are those before, then those after."""
    data, weight = call.tensor(0), call.tensor(1)
    geometry = _geometry(call)
    data = _padded(call, data, geometry)
    window = [
        te.reduce_axis(extent, name) if extent > 1 else None
        for extent, name in zip(geometry.kernel, _REDUCE_NAMES[-len(geometry.kernel) :], strict=True)
    ]
    channels = te.reduce_axis(geometry.inputs_per_group, "rc") if geometry.inputs_per_group > 1 else None
    axes = [axis for axis in (*window, channels) if axis is not None]
    zero = te.const(0)
    offsets: tuple[Expr, ...] = tuple(zero if axis is None else axis for axis in window)

    def product(n: Expr, place: tuple[Expr, ...], c: Expr) -> Expr:
        read = tuple(
            at * stride + offset * dilation
            for at, stride, offset, dilation in zip(place, geometry.strides, offsets, geometry.dilations, strict=True)
        )
        channel: Expr = zero if channels is None else channels
        if geometry.grouped:
            channel = c // geometry.outputs_per_group * geometry.inputs_per_group + channel
        value = data[(n, *read, channel)] if geometry.channels_last else data[(n, channel, *read)]
        return call.product(value, _weight_at(weight, geometry, offsets, channels, c))

    def body(n: Expr, place: tuple[Expr, ...], c: Expr) -> Expr:
        return te.sum(product(n, place, c), axes) if axes else product(n, place, c)

    indices = _indices(len(geometry.kernel), geometry.channels_last, body)
    return te.compute(call.shape, indices, name=call.name, attrs=call.layout_free(1))


def _indices(rank: int, channels_last: bool, body: _Body) -> Callable[..., Expr]:
    """`body` as a function of the result's axes, whose parameters name them."""
    named: dict[tuple[int, bool], Callable[..., Expr]] = {
        (1, True): lambda n, x, c: body(n, (x,), c),
        (1, False): lambda n, c, x: body(n, (x,), c),
        (2, True): lambda n, y, x, c: body(n, (y, x), c),
        (2, False): lambda n, c, y, x: body(n, (y, x), c),
        (3, True): lambda n, z, y, x, c: body(n, (z, y, x), c),
        (3, False): lambda n, c, z, y, x: body(n, (z, y, x), c),
    }
    return named[rank, channels_last]


def _geometry(call: OpCall) -> _Geometry:
    weight = call.tensor(1).shape
    rank = len(call.shape) - 2
    groups = call.integer("groups")
    channels_last = call.text("layout") in _CHANNELS_LAST
    if channels_last:
        kernel, outputs = weight[:rank], weight[-1]
        inputs = weight[rank] if len(weight) == rank + 2 else 1
    else:
        kernel, outputs, inputs = weight[2:], weight[0], weight[1]
    return _Geometry(
        channels_last=channels_last,
        kernel=kernel,
        strides=call.ints("strides"),
        dilations=call.ints("dilations"),
        output=call.shape[1:-1] if channels_last else call.shape[2:],
        inputs_per_group=inputs,
        outputs_per_group=outputs // groups,
        grouped=groups > 1,
    )


def _weight_at(weight: Tensor, geometry: _Geometry, offsets: tuple[Expr, ...], channels: Axis | None, c: Expr) -> Expr:
    channel: Expr = te.const(0) if channels is None else channels
    if not geometry.channels_last:
        return weight[(c, channel, *offsets)]
    depthwise = len(weight.shape) == len(offsets) + 1
    return weight[(*offsets, c)] if depthwise else weight[(*offsets, channel, c)]


def _padded(call: OpCall, data: Tensor, geometry: _Geometry) -> Tensor:
    """The input with zeros around it, also in channels that only the weight has, cut to what windows cover; the input
    itself when no window leaves it.
    """
    rank = len(geometry.kernel)
    before = call.ints("pads")[:rank]
    first = 1 if geometry.channels_last else 2
    needed = tuple(geometry.needed(dim) for dim in range(rank))
    if not geometry.grouped and data.shape[-1 if geometry.channels_last else 1] < geometry.inputs_per_group:
        filled = geometry.inputs_per_group
        first = 1
        before = (*before, 0) if geometry.channels_last else (0, *before)
        needed = (*needed, filled) if geometry.channels_last else (filled, *needed)
    inside = data.shape[first : first + len(needed)]
    if not any(before) and all(want <= have for want, have in zip(needed, inside, strict=True)):
        return data
    after = tuple(max(0, want - low - have) for want, low, have in zip(needed, before, inside, strict=True))
    fill = call.integer("pad_value") if "pad_value" in call.attrs else 0
    return zero_padded(data, first, before, after, f"{call.name}_pad", needed, fill)


def zero_padded(
    data: Tensor,
    first: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
    name: str,
    cut: tuple[int, ...] = (),
    fill: int = 0,
) -> Tensor:
    """The tensor with zeros (or `fill`) around the dimensions from `first` on, and nothing beyond `cut` elements. What
    is end to end in a concatenation is read where it lies: a stage of its own would be one more copy.
    """
    rank, source = len(before), data.op
    inside = data.shape[first : first + rank]
    sizes = cut or tuple(low + have + high for low, have, high in zip(before, inside, after, strict=True))
    shape = (*data.shape[:first], *sizes, *data.shape[first + rank :])

    def body(indices: tuple[Expr, ...]) -> Expr:
        moved = list(indices)
        conditions = []
        for dim in range(rank):
            index = indices[first + dim]
            if before[dim]:
                conditions.append(index >= before[dim])
            if after[dim]:
                conditions.append(index < before[dim] + inside[dim])
            moved[first + dim] = index - before[dim]
        value: Expr = data[tuple(moved)]
        if isinstance(source, ComputeOp) and CONCATENATED in source.attrs:
            value = substitute(source.body, dict(zip(source.axes, moved, strict=True)))
        return te.if_then_else(te.logical_and(*conditions), value, te.const(fill, data.dtype))

    functions: dict[int, Callable[..., Expr]] = {
        3: lambda a, b, c: body((a, b, c)),
        4: lambda a, b, c, d: body((a, b, c, d)),
        5: lambda a, b, c, d, e: body((a, b, c, d, e)),
    }
    return te.compute(shape, functions[len(shape)], name=name)
