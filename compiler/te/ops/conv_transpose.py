"""In: channels-last activations and a weight. Out: a transposed 2-D convolution as tensor expressions.

Always: no multiplication by a zero that the stride put there. The result's elements fall into stride × stride phases;
the elements of one phase read the same taps of the weight, so each phase is a small dense convolution. In general a
last stage interleaves them; where the stride divides the result's extents, they are computed in their places.
"""

from retune.compiler import te
from retune.compiler.errors import DefinitionError
from retune.compiler.ir.expr import Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.ops.conv import zero_padded
from retune.compiler.te.tensor import Tensor


def conv_transpose2d(call: OpCall) -> Tensor:
    """conv_transpose(x, weight) of (N, H, W, I) and (KH, KW, I, O): y[s * i + k - pad] += x[i] * w[k].

    Attributes: `layout` ("NHWC"), `strides`, and `pads` of which the first two, (top, left), are cut off the result;
    `call.shape` says where it ends. Raises: DefinitionError for another layout.
    """
    if call.text("layout") != "NHWC":
        raise DefinitionError(f"{call.name}: a transposed convolution is channels-last, not {call.text('layout')}")
    data, weight = call.tensor(0), call.tensor(1)
    strides, before = call.pair("strides"), call.ints("pads")[:2]
    kernel, inputs = weight.shape[:2], weight.shape[2]
    taps = tuple(-(-size // stride) for size, stride in zip(kernel, strides, strict=True))
    turns = tuple(-(-extent // stride) for extent, stride in zip(call.shape[1:3], strides, strict=True))
    low = tuple(count - 1 for count in taps)
    high = tuple(
        max(0, turn - have + -(-cut // stride))
        for turn, have, cut, stride in zip(turns, data.shape[1:3], before, strides, strict=True)
    )
    padded = zero_padded(data, 1, low, high, f"{call.name}_pad") if any((*low, *high)) else data
    ry, rx = te.reduce_axis(taps[0], "ry"), te.reduce_axis(taps[1], "rx")
    rc = te.reduce_axis(inputs, "rc")

    def phase(n: Expr, a: Expr, b: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        row, column = a + ry * strides[0], b + rx * strides[1]
        tap: Expr = weight[row, column, rc, c]
        beyond = [
            place < size for place, size, stride in zip((row, column), kernel, strides, strict=True) if size % stride
        ]
        if beyond:
            tap = te.if_then_else(te.logical_and(*beyond), tap, 0.0)
        shifts = [
            (cut + stride - 1 - place) // stride for place, cut, stride in zip((a, b), before, strides, strict=True)
        ]
        value = padded[n, y + shifts[0] + low[0] - ry, x + shifts[1] + low[1] - rx, rc]
        return te.sum(value * tap, [ry, rx, rc])

    shape = (call.shape[0], *strides, *turns, call.shape[3])
    phases = te.compute(shape, phase, name=f"{call.name}_phases", attrs=call.layout_free(1))

    def interleaved(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        row, column = (y + before[0]) % strides[0], (x + before[1]) % strides[1]
        return phases[n, row, column, y // strides[0], x // strides[1], c]

    return te.compute(call.shape, interleaved, name=call.name)


def conv_phases2d(call: OpCall) -> Tensor:
    """conv_phases(x, weight) of (N, H, W, I) and (KH, KW, I, O), whose taps are ordered by phase: element
    (n, y, a, x, b, o) is that in row y * s + a, column x * s + b of the transposed convolution.

    Attributes: `strides`, and `pads`, (top, left), which are cut off.
    """
    data, weight = call.tensor(0), call.tensor(1)
    strides, cuts = call.pair("strides"), call.pair("pads")
    turns, inputs = (call.shape[1], call.shape[3]), weight.shape[2]
    taps = tuple(size // stride for size, stride in zip(weight.shape[:2], strides, strict=True))
    low = tuple(max(0, count - 1 - cut // stride) for count, cut, stride in zip(taps, cuts, strides, strict=True))
    high = tuple(
        max(0, turn + (stride - 1 + cut) // stride - have)
        for turn, have, cut, stride in zip(turns, data.shape[1:3], cuts, strides, strict=True)
    )
    padded = zero_padded(data, 1, low, high, f"{call.name}_pad") if any((*low, *high)) else data
    names = ("ry", "rx")
    ry, rx = (te.reduce_axis(count, name) if count > 1 else None for count, name in zip(taps, names, strict=True))
    channels = te.reduce_axis(inputs, "rc")
    axes = [axis for axis in (ry, rx, channels) if axis is not None]
    row, column = (te.const(0) if axis is None else axis for axis in (ry, rx))

    def read(phase: Expr, dim: int) -> Expr:
        """How far behind its own number an element of the phase begins to read."""
        stride, cut = strides[dim], cuts[dim]
        if cut % stride == 0:
            return te.const(low[dim] + cut // stride)
        begun = phase + cut // stride if stride == 2 else (phase + cut) // stride
        return begun + low[dim]

    def element(n: Expr, y: Expr, a: Expr, x: Expr, b: Expr, c: Expr) -> Expr:
        value = padded[n, y + read(a, 0) - row, x + read(b, 1) - column, channels]
        return te.sum(value * weight[a + row * strides[0], b + column * strides[1], channels, c], axes)

    return te.compute(call.shape, element, name=call.name, attrs=call.layout_free(1))
