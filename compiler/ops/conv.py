"""Convolutions of one, two or three dimensions.

Layouts: channels last (NWC, NHWC, NDHWC) with (*kernel, I/groups, O) weights, or (*kernel, C) ones when the convolution
is depthwise (groups = C = O); channels first (NCHW, NCDHW) with (O, I/groups, *kernel). `pads` are those before every
spatial dimension, then those after. Padding is its own stage, made only where a window leaves the input. Reduce
axes of extent 1 are left out, so a 1x1 convolution is a matmul.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from retune.compiler import te
from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.ir.dims import may_be_positive
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.visit import substitute
from retune.compiler.ops.matmul import require_bytes
from retune.compiler.ops.op import Array, Attributed, FusionKind, Lowered, Op, OpCall, Shape, summed_product, widen
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import CONCATENATED, ComputeOp, Tensor

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
"""Channels first and last, by the number of spatial dimensions."""
_REDUCE_NAMES = ("rz", "ry", "rx")
_NUMBER = {1: "three", 2: "four", 3: "five"}


def is_channels_last(call: Attributed) -> bool:
    """Whether the attribute `layout` has the channels last."""
    return call.text("layout").endswith("C")


def require_layout(call: OpCall, rank: int) -> tuple[int, ...]:
    """The spatial axes of the first operand, of `rank` dimensions in the attribute `layout`."""
    call.require(len(call.types[0].shape) == rank + 2, f"the first operand must have {_NUMBER[rank]} dimensions")
    first, last = LAYOUTS[rank]
    call.require(call.text("layout") in (first, last), f"layout {call.text('layout')!r} is neither {first} nor {last}")
    return tuple(range(1, rank + 1)) if is_channels_last(call) else tuple(range(2, rank + 2))


def window_extent(extent: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """How many windows fit along one axis of a convolution or pool; zero or less when none does."""
    # ONNX's formula: windows that do not fit whole are left out.
    return (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1


def require_windows(call: OpCall, kernel: Shape, dilations: Shape, axes: tuple[int, ...]) -> Shape:
    """How many windows of `kernel` fit along each of the spatial axes; the formula may give 0, but no less."""
    strides, pads, rank = call.ints("strides"), call.ints("pads"), len(axes)
    fits = len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    call.require(fits, f"the window, strides, dilations and pads must be for {rank} dimensions")
    extents = tuple(
        window_extent(call.types[0].shape[axes[i]], kernel[i], strides[i], dilations[i], pads[i], pads[rank + i])
        for i in range(rank)
    )
    call.require(all(extent >= 0 for extent in extents), f"the window {kernel} does not fit")
    return extents


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Sizes of a convolution, a number for every spatial dimension. `taps` are those of the weight, of which only those
    within the window `kernel` read the input.
    """

    channels_last: bool
    kernel: Shape
    taps: Shape
    strides: Shape
    dilations: Shape
    output: Shape
    inputs_per_group: int
    outputs: int
    groups: int

    @property
    def shape(self) -> Shape:
        """The result's shape after the batch."""
        return (*self.output, self.outputs) if self.channels_last else (self.outputs, *self.output)

    def extent_needed(self, dim: int) -> int:
        """How many elements of the padded input the windows cover."""
        return (self.output[dim] - 1) * self.strides[dim] + (self.kernel[dim] - 1) * self.dilations[dim] + 1


def _geometry(call: OpCall, rank: int, channels: int | None = None) -> _Geometry:
    """The sizes of a call that fits; `channels` is how many the padded input has where that is more than its own."""
    shape, weight = call.types[0].shape, call.types[1].shape
    axes, last = require_layout(call, rank), is_channels_last(call)
    groups, taken = call.integer("groups"), channels or shape[-1 if last else 1]
    if not last:
        fits = len(weight) == rank + 2 and weight[1] * groups == taken and weight[0] % groups == 0
        call.require(fits, f"the weight must be (O, I/{groups}, KH, KW)")
        taps, outputs, inputs = weight[2:], weight[0], weight[1]
    elif len(weight) == rank + 1:
        fits = groups == taken == weight[-1]
        call.require(fits, "a depthwise weight must be (KH, KW, C) with one group a channel")
        taps, outputs, inputs = weight[:rank], weight[-1], 1
    else:
        fits = len(weight) == rank + 2 and weight[-2] * groups == taken and weight[-1] % groups == 0
        call.require(fits, f"the weight must be (KH, KW, I/{groups}, O)")
        taps, outputs, inputs = weight[:rank], weight[-1], weight[rank]
    kernel = _window(call, taps)
    output = require_windows(call, kernel, call.ints("dilations"), axes)
    return _Geometry(last, kernel, taps, call.ints("strides"), call.ints("dilations"), output, inputs, outputs, groups)


def _window(call: OpCall, taps: Shape) -> Shape:
    """The extents of the window, which a weight with `taps` may exceed: the attribute `window`, by default the taps."""
    window = call.ints("window") if "window" in call.attrs else ()
    if not window:
        return taps
    fits = len(window) == len(taps) and all(0 < extent <= taken for extent, taken in zip(window, taps, strict=True))
    call.require(fits, f"the window {window} is not within the weight's {taps}")
    return window


def _convolution(call: OpCall, rank: int) -> Lowered:
    """A grouped convolution of (x, weight). Of bfloat16, a channel that only the weight has is padding: dot products
    sum two.
    """
    dtype = call.types[0].dtype
    channels = _filled_channels(call, 2) if dtype == BFLOAT16 else None
    return _lower(call, _geometry(call, rank, channels), call.out_dtype or dtype)


def _filled_channels(call: OpCall, terms: int) -> int | None:
    """The number of channels of the weight where it has up to `terms` - 1 more than the input."""
    x, weight = call.types
    if call.integer("groups") != 1 or len(x.shape) != len(weight.shape):
        return None
    last = is_channels_last(call)
    given, taken = x.shape[-1 if last else 1], weight.shape[-2 if last else 1]
    return taken if given < taken < given + terms else None


def _byte_convolution(call: OpCall, rank: int) -> Lowered:
    """Bytes of any signs give int32. Up to three channels that only the weight has are padding; its taps outside the
    attribute `window` multiply zeros.
    """
    require_pad_byte(call, call.types[0].dtype)
    require_bytes(call)
    # Dot products sum four bytes: missing channels read the padding, whose weights are zero.
    return _lower(call, _geometry(call, rank, _filled_channels(call, 4)), "int32")


def require_pad_byte(call: OpCall, dtype: str) -> None:
    """`pad_value` must be a number of the type of bytes `dtype`."""
    limits = (-128, 127) if dtype == "int8" else (0, 255)
    value = call.integer("pad_value")
    call.require(limits[0] <= value <= limits[1], f"pad_value {value} is no {dtype}")


def _lower(call: OpCall, geometry: _Geometry, dtype: str) -> Lowered:
    shape = (call.types[0].shape[0], *geometry.shape)
    return Lowered(shape, dtype, lambda data, weight: _compute(call, geometry, shape, dtype, data, weight))


def _compute(call: OpCall, geometry: _Geometry, shape: Shape, dtype: str, data: Tensor, weight: Tensor) -> Tensor:
    data = _pad(call, data, geometry)
    window = [
        # A loop of one iteration would hide that a 1x1 convolution is a matmul.
        te.reduce_axis(extent, name) if extent > 1 else None
        for extent, name in zip(geometry.taps, _REDUCE_NAMES[-len(geometry.taps) :], strict=True)
    ]
    channels = te.reduce_axis(geometry.inputs_per_group, "rc") if geometry.inputs_per_group > 1 else None
    axes = [axis for axis in (*window, channels) if axis is not None]
    zero = te.const(0)
    offsets: tuple[Expr, ...] = tuple(zero if axis is None else axis for axis in window)

    def body(n: Expr, *others: Expr) -> Expr:
        position, c = (others[:-1], others[-1]) if geometry.channels_last else (others[1:], others[0])
        read = tuple(
            at * stride + offset * dilation
            for at, stride, offset, dilation in zip(
                position, geometry.strides, offsets, geometry.dilations, strict=True
            )
        )
        channel: Expr = zero if channels is None else channels
        if geometry.groups > 1:
            channel = c // (geometry.outputs // geometry.groups) * geometry.inputs_per_group + channel
        value: Expr = data[(n, *read, channel)] if geometry.channels_last else data[(n, channel, *read)]
        inside = [
            offset < extent
            for offset, extent, taps in zip(offsets, geometry.kernel, geometry.taps, strict=True)
            if extent < taps
        ]
        if inside:
            value = te.if_then_else(te.logical_and(*inside), value, te.const(0, data.dtype))
        return summed_product(dtype, value, _weight_at(weight, geometry, offsets, channels, c), axes)

    position_names = "zyx"[-len(geometry.kernel) :]
    names = (*position_names, "c") if geometry.channels_last else ("c", *position_names)
    return te.compute(shape, body, name=call.name, attrs=call.layout_free(weight), varargs_names=names)


def _weight_at(weight: Tensor, geometry: _Geometry, offsets: tuple[Expr, ...], channels: Axis | None, c: Expr) -> Expr:
    channel: Expr = te.const(0) if channels is None else channels
    if not geometry.channels_last:
        return weight[(c, channel, *offsets)]
    depthwise = len(weight.shape) == len(offsets) + 1
    return weight[(*offsets, c)] if depthwise else weight[(*offsets, channel, c)]


def _pad(call: OpCall, data: Tensor, geometry: _Geometry) -> Tensor:
    """The input with zeros around it, also in channels that only the weight has, cut to what windows cover; the input
    itself when no window leaves it.
    """
    rank = len(geometry.kernel)
    before = call.ints("pads")[:rank]
    first = 1 if geometry.channels_last else 2
    # What lies beyond the last window is not copied.
    needed = tuple(geometry.extent_needed(dim) for dim in range(rank))
    if geometry.groups == 1 and data.shape[-1 if geometry.channels_last else 1] < geometry.inputs_per_group:
        filled = geometry.inputs_per_group
        first = 1
        before = (*before, 0) if geometry.channels_last else (0, *before)
        needed = (*needed, filled) if geometry.channels_last else (filled, *needed)
    inside = data.shape[first : first + len(needed)]
    # A test that is always true is right for any extent; a decision would hold for every other extent only.
    pairs = zip(needed, before, inside, strict=True)
    after = tuple(int(may_be_positive(want - low - have)) for want, low, have in pairs)
    if not any(before) and not any(after):
        return data
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
    """The tensor with zeros (or `fill`) around the dimensions from `first` on, and nothing beyond `cut` elements. The
    operands of a concatenation are read directly: its own stage would be one more copy.
    """
    rank, source = len(before), data.op
    inside = data.shape[first : first + rank]
    sizes = cut or tuple(low + have + high for low, have, high in zip(before, inside, after, strict=True))
    shape = (*data.shape[:first], *sizes, *data.shape[first + rank :])

    def body(*indices: Expr) -> Expr:
        moved = list(indices)
        conditions = []
        for dim in range(rank):
            index = indices[first + dim]
            # Sides without padding need no test.
            if before[dim]:
                conditions.append(index >= before[dim])
            if after[dim]:
                conditions.append(index < before[dim] + inside[dim])
            moved[first + dim] = index - before[dim]
        value: Expr = data[tuple(moved)]
        if isinstance(source, ComputeOp) and CONCATENATED in source.attrs:
            # The concatenation is read through: its own buffer would be written and read once more.
            value = substitute(source.body, dict(zip(source.axes, moved, strict=True)))
        return te.if_then_else(te.logical_and(*conditions), value, te.const(fill, data.dtype))

    return te.compute(shape, body, name=name, varargs_names="abcde"[: len(shape)])


def channels_last(call: OpCall, x: Array) -> Array:
    """An array of the attribute `layout` with its channels last."""
    return x if is_channels_last(call) else np.moveaxis(x, 1, -1)


def from_channels_last(call: OpCall, x: Array) -> Array:
    """The inverse of `channels_last`."""
    return x if is_channels_last(call) else np.moveaxis(x, -1, 1)


def window_view(call: OpCall, x: Array, kernel: Shape, dilations: Shape, fill: float) -> Array:
    """All windows of the channels-last `x`: (N, OH, OW, C, KH, KW), or one dimension more of each in 3-D."""
    rank = len(kernel)
    before, after = call.ints("pads")[:rank], call.ints("pads")[rank:]
    padded = np.pad(x, ((0, 0), *zip(before, after, strict=True), (0, 0)), constant_values=fill)
    # Windows as wide as dilated ones, of which the last index takes every `dilation`-th element.
    reach = tuple(dilation * (extent - 1) + 1 for extent, dilation in zip(kernel, dilations, strict=True))
    windows = sliding_window_view(padded, reach, axis=tuple(range(1, rank + 1)))
    whole = slice(None)
    strides = (slice(None, None, stride) for stride in call.ints("strides"))
    return np.asarray(windows[(whole, *strides, whole, *(slice(None, None, step) for step in dilations))])


def _convolution_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, weight = map(widen, arrays)
    groups = call.integer("groups")
    rank = x.ndim - 2
    fill = call.integer("pad_value") if "pad_value" in call.attrs else 0
    channel, last = (-1, -2) if is_channels_last(call) else (1, 1)
    first = 0 if is_channels_last(call) else 2
    for axis, extent in enumerate(_window(call, weight.shape[first : first + rank]), first):
        weight = weight.take(range(extent), axis)
    if groups == 1 and weight.ndim == x.ndim and weight.shape[last] > x.shape[channel]:
        border = [(0, 0)] * x.ndim
        border[channel] = (0, weight.shape[last] - x.shape[channel])
        x = np.pad(x, border, constant_values=fill)
    if not is_channels_last(call):
        # To (*kernel, I/groups, O), as with the channels last.
        weight = weight.transpose(*range(2, rank + 2), 1, 0)
    elif weight.ndim == rank + 1:
        # A depthwise weight lacks the axis of the one input channel of each group.
        weight = weight[..., None, :]
    windows = window_view(call, channels_last(call, x), weight.shape[:rank], call.ints("dilations"), fill)
    windows = np.moveaxis(windows, rank + 1, -1)
    inputs, outputs = weight.shape[-2], weight.shape[-1] // groups
    parts = [
        np.tensordot(
            windows[..., g * inputs : (g + 1) * inputs],
            weight[..., g * outputs : (g + 1) * outputs],
            axes=(tuple(range(rank + 1, 2 * rank + 2)), tuple(range(rank + 1))),
        )
        for g in range(groups)
    ]
    return from_channels_last(call, np.concatenate(parts, axis=-1))


def _convolve_bytes(call: OpCall, arrays: Sequence[Array]) -> Array:
    return _convolution_array(call, [array.astype(np.int32) for array in arrays])


_ATTRS = {"strides": tuple, "pads": tuple, "dilations": tuple, "groups": int, "layout": str}


_BYTE_ATTRS = {**_ATTRS, "pad_value": int, "window": tuple}

CONVOLUTIONS = {
    rank: Op(f"conv{rank}d", 2, FusionKind.COMPLEX, partial(_convolution, rank=rank), _convolution_array, _ATTRS)
    for rank in LAYOUTS
}
"""By the number of spatial dimensions. Graphs have no 1-D ones: importers add a dimension, which passes know."""

OPERATORS = (
    CONVOLUTIONS[2],
    CONVOLUTIONS[3],
    *(
        Op(f"qconv{rank}d", 2, FusionKind.COMPLEX, partial(_byte_convolution, rank=rank), _convolve_bytes, _BYTE_ATTRS)
        for rank in (2, 3)
    ),
)
