"""In: activations, a scale and a bias. Out: normalisations as tensor expressions.

Always: the variance is the mean of squared differences from the mean, which does not cancel.
"""

import math

from compiler import te
from compiler.ir.expr import Expr
from compiler.te.ops.call import OpCall
from compiler.te.tensor import Tensor


def layer_norm(call: OpCall) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the dimensions from `axis` on."""
    source, scale, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    first = call.integer("axis") % len(source.shape)
    outer, inner = source.shape[:first], source.shape[first:]
    share = 1.0 / math.prod(inner)
    k = [te.reduce_axis(extent, f"k{place}") for place, extent in enumerate(inner)]
    q = [te.reduce_axis(extent, f"q{place}") for place, extent in enumerate(inner)]
    total = te.compute(outer, lambda *i: te.sum(source[(*i, *k)], k), name=f"{call.name}_sum")
    mean = te.compute(outer, lambda *i: total[i] * share, name=f"{call.name}_mean")

    def square(*i: Expr) -> Expr:
        difference = source[(*i, *q)] - mean[i]
        return te.sum(difference * difference, q)

    squares = te.compute(outer, square, name=f"{call.name}_squares")
    epsilon = call.number("epsilon")
    factor = te.compute(outer, lambda *i: te.rsqrt(squares[i] * share + epsilon), name=f"{call.name}_factor")

    def normal(*i: Expr) -> Expr:
        row, column = i[:first], i[first:]
        return (source[i] - mean[row]) * factor[row] * scale[column] + bias[column]

    return te.compute(call.shape, normal, name=call.name)
