"""In: channels-last activations and a weight. Out: a transposed 2-D convolution as tensor expressions.

Always: no multiplication by a zero that the stride put there. The result's elements fall into stride × stride phases;
the elements of one phase read the same taps of the weight, so each phase is a small dense convolution, and a last stage
interleaves them.
"""

from compiler import te
from compiler.errors import DefinitionError
from compiler.ir.expr import Expr
from compiler.te.ops.call import OpCall
from compiler.te.ops.conv import zero_padded
from compiler.te.tensor import Tensor


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
