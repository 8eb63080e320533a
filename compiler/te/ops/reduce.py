"""In: a tensor and axes. Out: reductions, softmax and its logarithm as tensor expressions.

Always: each reduction is a compute of its own.
"""

import math
from collections.abc import Callable, Sequence

from retune.compiler import te
from retune.compiler.dtype import is_float
from retune.compiler.errors import DefinitionError
from retune.compiler.ir.expr import Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.tensor import Axis, Tensor

_Combine = Callable[[Expr, Sequence[Axis]], Expr]
_COMBINERS: dict[str, _Combine] = {
    "reduce_sum": te.sum,
    "reduce_mean": te.sum,
    "reduce_max": te.max,
    "reduce_min": te.min,
    "reduce_prod": te.prod,
}


def reduction(call: OpCall) -> Tensor:
    """reduce_sum, reduce_mean, reduce_max, reduce_min over `axes`."""
    source = call.tensor(0)
    axes = call.ints("axes")
    mean = call.op == "reduce_mean"
    name = f"{call.name}_sum" if mean else call.name
    result = _reduce(source, axes, _COMBINERS[call.op], call.shape, bool(call.attrs.get("keepdims")), name)
    if not mean:
        return result
    count = math.prod(source.shape[axis] for axis in axes)
    whole = not is_float(call.dtype)
    return te.compute(call.shape, lambda *i: result[i] / count if whole else result[i] * (1.0 / count), name=call.name)


def _reduce(
    source: Tensor, axes: Sequence[int], combine: _Combine, shape: tuple[int, ...], keepdims: bool, name: str
) -> Tensor:
    inner = {axis: te.reduce_axis(source.shape[axis], f"r{axis}") for axis in axes}

    def body(*outer: Expr) -> Expr:
        kept = iter(outer)
        indices: list[Expr] = []
        for axis in range(len(source.shape)):
            if axis in inner and keepdims:
                next(kept)
            indices.append(inner[axis] if axis in inner else next(kept))
        return combine(source[tuple(indices)], list(inner.values()))

    return te.compute(shape, body, name=name)


def argmax(
    source: Tensor, axis: int, keepdims: bool = False, index: str = "int64", name: str = "argmax"
) -> tuple[Tensor, ...]:
    """Where along `axis` the largest element is, as `index`, and that element: two tensors of the shape without the
    axis, or with 1 in its place.

    Of equal elements it is the first; a NaN counts as larger than any number. So it is in NumPy.
    Raises: DefinitionError when there is no such axis, or the places along it are not all of type `index`.
    """
    return _place(source, axis, te.argmax, keepdims, index, name)


def argmin(
    source: Tensor, axis: int, keepdims: bool = False, index: str = "int64", name: str = "argmin"
) -> tuple[Tensor, ...]:
    """Where along `axis` the smallest element is, and that element; see `argmax`. A NaN counts as smaller than any
    number.
    """
    return _place(source, axis, te.argmin, keepdims, index, name)


def _place(source: Tensor, axis: int, reducer: te.Reducer, keepdims: bool, index: str, name: str) -> tuple[Tensor, ...]:
    rank = len(source.shape)
    if not -rank <= axis < rank:
        raise DefinitionError(f"{name}: {source.name} has {rank} dimensions, so there is no axis {axis}")
    axis %= rank
    extent = source.shape[axis]
    if extent - 1 > te.largest(index):
        raise DefinitionError(f"{name}: {index} does not hold the {extent} places along axis {axis} of {source.name}")
    along = te.reduce_axis(extent, f"r{axis}")
    before, after = source.shape[:axis], source.shape[axis + 1 :]

    def body(*outer: Expr) -> tuple[Expr, ...]:
        point = (*outer[:axis], along, *outer[axis + keepdims :])
        return reducer((te.cast(index, along), source[point]), axis=along)

    return te.compute((*before, *((1,) if keepdims else ()), *after), body, name=name)


def softmax(call: OpCall) -> Tensor:
    """exp(x - max(x)) / sum(exp(x - max(x))) along `axis`, with one division for each sum."""
    axis = call.integer("axis")
    _, power, total = _exponentials(call)
    inverse = te.compute(total.shape, lambda *i: 1.0 / total[i], name=f"{call.name}_inverse")
    return te.compute(call.shape, lambda *i: power[i] * inverse[_without(i, axis)], name=call.name)


def log_softmax(call: OpCall) -> Tensor:
    """x - max(x) - log(sum(exp(x - max(x)))) along `axis`."""
    source, axis = call.tensor(0), call.integer("axis")
    peak, _, total = _exponentials(call)
    log = te.compute(total.shape, lambda *i: te.log(total[i]), name=f"{call.name}_log")
    return te.compute(
        call.shape, lambda *i: source[i] - peak[_without(i, axis)] - log[_without(i, axis)], name=call.name
    )


def _exponentials(call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    """max(x), exp(x - max(x)) and the sums of these along `axis`; the first and the last are without it."""
    source, axis = call.tensor(0), call.integer("axis")
    kept = tuple(extent for place, extent in enumerate(source.shape) if place != axis)
    peak = _reduce(source, (axis,), te.max, kept, keepdims=False, name=f"{call.name}_max")
    power = te.compute(call.shape, lambda *i: te.exp(source[i] - peak[_without(i, axis)]), name=f"{call.name}_exp")
    return peak, power, _reduce(power, (axis,), te.sum, kept, keepdims=False, name=f"{call.name}_sum")


def _without(indices: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
    return indices[:axis] + indices[axis + 1 :]
