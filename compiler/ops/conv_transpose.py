"""Transposed 2-D convolutions, without the multiplications by zeros that the stride would put in.

The result's elements fall into stride x stride phases; the elements of one phase read the same taps of the weight, so
each phase is a small dense convolution. In general a last stage interleaves them (`conv_transpose2d`); where the stride
divides the result's extents, they are computed in place (`conv_phases2d`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.conv import (
    channels_last,
    from_channels_last,
    is_channels_last,
    require_layout,
    require_pad_byte,
    zero_padded,
)
from retune.compiler.ops.matmul import require_bytes
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, Shape, TensorType, summed_product, widen
from retune.compiler.te.tensor import Tensor


def _conv_transpose2d(call: OpCall) -> Lowered:
    """y[stride * i + k - pad] += x[i] * weight[k], of weights (I, O, KH, KW), or (KH, KW, I, O) in NHWC.

    `pads` are cut off the result; a negative pad after it appends zeros. Only channels-last is lowered.
    """
    x, weight = call.types
    axes, last = require_layout(call, 2), is_channels_last(call)
    fits = len(weight.shape) == 4 and weight.dtype == x.dtype
    call.require(fits, "the weight must have four dimensions and the dtype of the first operand")
    in_channels, out_channels, *kernel = (*weight.shape[2:], *weight.shape[:2]) if last else weight.shape
    strides, pads = call.ints("strides"), call.ints("pads")
    fits = len(strides) == 2 and len(pads) == 4 and min(*strides, pads[0] + 1, pads[1] + 1) > 0
    call.require(fits, "strides and the pads in front must be for two dimensions and not be negative")
    call.require(x.shape[3 if last else 1] == in_channels, f"the weight is for {in_channels} channels")
    extents = tuple((x.shape[axis] - 1) * strides[i] + kernel[i] - pads[i] - pads[2 + i] for i, axis in enumerate(axes))
    call.require(all(extent > 0 for extent in extents), "nothing is left of the result")
    shape = (x.shape[0], *extents, out_channels) if last else (x.shape[0], out_channels, *extents)

    def build(data: Tensor, taps: Tensor) -> Tensor:
        if not last:
            raise call.misfit(f"a transposed convolution is lowered channels-last, not {call.text('layout')}")
        return _interleave(call, shape, data, taps)

    return Lowered(shape, call.out_dtype or x.dtype, build)


def _interleave(call: OpCall, shape: Shape, data: Tensor, weight: Tensor) -> Tensor:
    """y[s * i + k - pad] += x[i] * w[k], phase by phase: phase a has the elements y with (y + pad) % s == a, which read
    the taps a, a + s, …
    """
    strides, before = call.ints("strides"), call.ints("pads")[:2]
    kernel, inputs = weight.shape[:2], weight.shape[2]
    # A phase has ceil(K / s) taps, of which the last is zero in phases with fewer taps.
    taps = tuple(-(-size // stride) for size, stride in zip(kernel, strides, strict=True))
    windows = tuple(-(-extent // stride) for extent, stride in zip(shape[1:3], strides, strict=True))
    # Element y of a phase reads x[y + shift - ry], so that its first elements read before the input.
    low = tuple(count - 1 for count in taps)
    high = tuple(
        max(0, window - have + -(-cut // stride))
        for window, have, cut, stride in zip(windows, data.shape[1:3], before, strides, strict=True)
    )
    padded = zero_padded(data, 1, low, high, f"{call.name}_pad") if any((*low, *high)) else data
    ry, rx = te.reduce_axis(taps[0], "ry"), te.reduce_axis(taps[1], "rx")
    rc = te.reduce_axis(inputs, "rc")

    def phase(n: Expr, a: Expr, b: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        row, column = a + ry * strides[0], b + rx * strides[1]
        tap: Expr = weight[row, column, rc, c]
        tap_exists = [
            index < size for index, size, stride in zip((row, column), kernel, strides, strict=True) if size % stride
        ]
        if tap_exists:
            tap = te.if_then_else(te.logical_and(*tap_exists), tap, 0.0)
        # The first element of phase a that is not cut off: ceil((cut - a) / stride).
        shifts = [
            (cut + stride - 1 - index) // stride for index, cut, stride in zip((a, b), before, strides, strict=True)
        ]
        value = padded[n, y + shifts[0] + low[0] - ry, x + shifts[1] + low[1] - rx, rc]
        return summed_product(call.out_dtype or data.dtype, value, tap, [ry, rx, rc])

    phases = te.compute(
        (shape[0], *strides, *windows, shape[3]), phase, name=f"{call.name}_phases", attrs=call.layout_free(weight)
    )

    def interleave(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        row, column = (y + before[0]) % strides[0], (x + before[1]) % strides[1]
        return phases[n, row, column, y // strides[0], x // strides[1], c]

    return te.compute(shape, interleave, name=call.name)


def _conv_transpose2d_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, weight = map(widen, arrays)
    if not is_channels_last(call):
        weight = weight.transpose(2, 3, 0, 1)
    x = channels_last(call, x)
    strides, pads, kernel = call.ints("strides"), call.ints("pads"), weight.shape[:2]
    full = [(n - 1) * stride + size for n, stride, size in zip(x.shape[1:3], strides, kernel, strict=True)]
    longer = [max(0, -pad) for pad in pads[2:]]
    whole = np.zeros((x.shape[0], full[0] + longer[0], full[1] + longer[1], weight.shape[3]), x.dtype)
    # The definition: every tap adds a product, offset by the tap's index and spread by the stride.
    for row, column in np.ndindex(*kernel):
        rows = slice(row, row + full[0] - kernel[0] + 1, strides[0])
        columns = slice(column, column + full[1] - kernel[1] + 1, strides[1])
        whole[:, rows, columns] += x @ weight[row, column]
    ends = [size - pad for size, pad in zip(full, pads[2:], strict=True)]
    return from_channels_last(call, whole[:, pads[0] : ends[0], pads[1] : ends[1]])


def _conv_phases2d(call: OpCall) -> Lowered:
    """Row y * stride + a, column x * stride + b of a transposed convolution at (n, y, a, x, b, o), `size` elements of
    each phase; `pads` are cut off. Tap a + stride * r of the weight (KH, KW, I, O) is the r-th that makes phase a.
    """
    x, weight = call.types
    strides, size, cuts = call.ints("strides"), call.ints("size"), call.ints("pads")
    fits = call.text("layout") == "NHWC" and len(strides) == len(size) == len(cuts) == 2
    call.require(fits, "the layout must be NHWC, strides, pads and size two numbers each")
    fits = min(*strides, *size, *(cut + 1 for cut in cuts)) > 0
    call.require(fits, "strides and size must be positive, pads must not be negative")
    fits = len(x.shape) == len(weight.shape) == 4 and weight.dtype == x.dtype and weight.shape[2] == x.shape[3]
    fits = fits and not any(taps % stride for taps, stride in zip(weight.shape, strides, strict=False))
    call.require(fits, "the weight must be (KH, KW, I, O), the strides divide KH and KW")
    shape = (x.shape[0], size[0], strides[0], size[1], strides[1], weight.shape[3])
    dtype = call.out_dtype or x.dtype
    return Lowered(shape, dtype, lambda data, taps: _phases(call, shape, dtype, data, taps))


def _byte_phases(call: OpCall) -> Lowered:
    """As `_conv_phases2d`, of bytes: what lies outside of the input is `pad_value`, sums are int32."""
    x, weight = call.types
    require_bytes(call)
    require_pad_byte(call, x.dtype)
    like = TensorType(weight.shape, x.dtype)
    shape = _conv_phases2d(replace(call, types=(x, like))).shape
    return Lowered(shape, "int32", lambda data, taps: _phases(call, shape, "int32", data, taps))


def _phases(call: OpCall, shape: Shape, dtype: str, data: Tensor, weight: Tensor) -> Tensor:
    """As `_interleaved`, but phase a has the elements y with y % s == a: `split_by_phase` reorders the weight so."""
    strides, cuts = call.ints("strides"), call.ints("pads")
    windows, inputs = (shape[1], shape[3]), weight.shape[2]
    taps = tuple(size // stride for size, stride in zip(weight.shape[:2], strides, strict=True))
    low = tuple(max(0, count - 1 - cut // stride) for count, cut, stride in zip(taps, cuts, strides, strict=True))
    high = tuple(
        max(0, window + (stride - 1 + cut) // stride - have)
        for window, have, cut, stride in zip(windows, data.shape[1:3], cuts, strides, strict=True)
    )
    fill = call.integer("pad_value") if "pad_value" in call.attrs else 0
    padded = zero_padded(data, 1, low, high, f"{call.name}_pad", fill=fill) if any((*low, *high)) else data
    names = ("ry", "rx")
    ry, rx = (te.reduce_axis(count, name) if count > 1 else None for count, name in zip(taps, names, strict=True))
    channels = te.reduce_axis(inputs, "rc")
    axes = [axis for axis in (ry, rx, channels) if axis is not None]
    row, column = (te.const(0) if axis is None else axis for axis in (ry, rx))

    def shift(phase: Expr, dim: int) -> Expr:
        """Element y of the phase reads its first tap's factor at y plus this shift, in the padded input."""
        stride, cut = strides[dim], cuts[dim]
        if cut % stride == 0:
            return te.const(low[dim] + cut // stride)
        # With stride 2 and an odd cut this equals the quotient, and is affine in the phase.
        quotient = phase + cut // stride if stride == 2 else (phase + cut) // stride
        return quotient + low[dim]

    def element(n: Expr, y: Expr, a: Expr, x: Expr, b: Expr, c: Expr) -> Expr:
        value = padded[n, y + shift(a, 0) - row, x + shift(b, 1) - column, channels]
        tap = weight[a + row * strides[0], b + column * strides[1], channels, c]
        return summed_product(dtype, value, tap, axes)

    return te.compute(shape, element, name=call.name, attrs=call.layout_free(weight))


def _conv_phases2d_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, weight = map(widen, arrays)
    strides, pads, size = call.ints("strides"), call.ints("pads"), call.ints("size")
    fill = call.integer("pad_value") if "pad_value" in call.attrs else 0
    result = np.zeros((x.shape[0], size[0], strides[0], size[1], strides[1], weight.shape[3]), x.dtype)
    # Every element of a phase reads all its taps: those outside of the input read `fill`.
    taps = weight.reshape(-1, strides[0], weight.shape[1] // strides[1], strides[1], *weight.shape[2:])
    result += fill * taps.sum((0, 2, 4), x.dtype)[:, None]
    x = x - np.asarray(fill, x.dtype)
    for row, column in np.ndindex(*weight.shape[:2]):
        phases, reads, writes = [], [], []
        for tap, stride, cut, have, want in zip((row, column), strides, pads, x.shape[1:3], size, strict=True):
            shift = (tap % stride + cut) // stride - tap // stride  # the element that the first one reads
            first, last = max(0, -shift), min(want, have - shift)
            phases.append(tap % stride)
            writes.append(slice(first, max(first, last)))
            reads.append(slice(first + shift, max(first, last) + shift))
        terms = x[:, reads[0], reads[1]] @ weight[row, column]
        result[:, writes[0], phases[0], writes[1], phases[1]] += terms
    return result


def _byte_phases_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    return _conv_phases2d_array(call, [array.astype(np.int32) for array in arrays])


_PHASES = {"strides": tuple, "pads": tuple, "size": tuple, "layout": str}

OPERATORS = (
    Op(
        "conv_transpose2d",
        2,
        FusionKind.COMPLEX,
        _conv_transpose2d,
        _conv_transpose2d_array,
        {"strides": tuple, "pads": tuple, "layout": str},
    ),
    Op("conv_phases2d", 2, FusionKind.COMPLEX, _conv_phases2d, _conv_phases2d_array, _PHASES),
    Op("qconv_phases2d", 2, FusionKind.COMPLEX, _byte_phases, _byte_phases_array, {**_PHASES, "pad_value": int}),
)
