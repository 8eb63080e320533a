"""In: activations, for layer norm a scale and a bias too. Out: normalisations as tensor expressions.

Always: the variance is the mean of squared differences from the mean, which does not cancel.
"""

import math

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.tensor import Axis, Tensor


def normalize(call: OpCall) -> Tensor:
    """c / sqrt(mean(c * c) + epsilon) over `axes`, with c = x - mean(x) when `centred`, else x."""
    axes = call.ints("axes")
    return _normalized(call, axes, call.number("epsilon"), centred=bool(call.attrs.get("centred")), name=call.name)


def layer_norm(call: OpCall) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the dimensions from `axis` on."""
    source, scale, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    first = call.integer("axis") % len(source.shape)
    axes = tuple(range(first, len(source.shape)))
    normal = _normalized(call, axes, call.number("epsilon"), centred=True, name=f"{call.name}_normal")
    return te.compute(call.shape, lambda *i: normal[i] * scale[i[first:]] + bias[i[first:]], name=call.name)


def _normalized(call: OpCall, axes: tuple[int, ...], epsilon: float, *, centred: bool, name: str) -> Tensor:
    source = call.tensor(0)
    kept = [place for place in range(len(source.shape)) if place not in axes]
    outer = tuple(source.shape[place] for place in kept)
    share = 1.0 / math.prod(source.shape[axis] for axis in axes)

    def row(point: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(point[place] for place in kept)

    def point(row: tuple[Expr, ...], inner: list[Axis]) -> tuple[Expr, ...]:
        at: dict[int, Expr] = {**dict(zip(kept, row, strict=True)), **dict(zip(axes, inner, strict=True))}
        return tuple(at[place] for place in range(len(source.shape)))

    k = [te.reduce_axis(source.shape[axis], f"k{axis}") for axis in axes]
    q = [te.reduce_axis(source.shape[axis], f"q{axis}") for axis in axes]
    mean: Tensor | None = None
    if centred:
        total = te.compute(outer, lambda *i: te.sum(source[point(i, k)], k), name=f"{name}_sum")
        mean = te.compute(outer, lambda *i: total[i] * share, name=f"{name}_mean")

    def difference(at: tuple[Expr, ...]) -> Expr:
        return source[at] if mean is None else source[at] - mean[row(at)]

    def square(*i: Expr) -> Expr:
        one = difference(point(i, q))
        return te.sum(one * one, q)

    squares = te.compute(outer, square, name=f"{name}_squares")
    factor = te.compute(outer, lambda *i: te.rsqrt(squares[i] * share + epsilon), name=f"{name}_factor")
    return te.compute(call.shape, lambda *i: difference(i) * factor[row(i)], name=name)
