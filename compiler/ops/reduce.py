"""Reductions over axes, softmax and its logarithm; each reduction is its own compute."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.core.dtype import is_float, item_bytes, sum_type
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, Shape, reciprocal, widen
from retune.compiler.te.reduction import Axis, Reduce
from retune.compiler.te.tensor import Tensor

_Combine = Callable[[Expr, Sequence[Axis]], Expr]
_Evaluate = Callable[[OpCall, Sequence[Array]], Array]


def _reduced_shape(call: OpCall) -> Shape:
    """The axes of `axes` become 1 (`keepdims`) or vanish."""
    axes, shape = call.require_axes(), call.types[0].shape
    if call.flag("keepdims"):
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _reduction(name: str, combine: _Combine, evaluate: _Evaluate) -> Op:
    def lower(call: OpCall) -> Lowered:
        shape = _reduced_shape(call)

        def build(x: Tensor) -> Tensor:
            return _reduce(x, call.ints("axes"), combine, shape, call.flag("keepdims"), call.name)

        return Lowered(shape, call.types[0].dtype, build)

    attrs = {"axes": tuple, "keepdims": bool}
    return Op(name, 1, FusionKind.REDUCTION, lower, evaluate, attrs)


def _mean(call: OpCall) -> Lowered:
    """Mean over axes."""
    shape, dtype = _reduced_shape(call), call.types[0].dtype

    def build(x: Tensor) -> Tensor:
        axes = call.ints("axes")
        total = _reduce(x, axes, _sum_wide, shape, call.flag("keepdims"), f"{call.name}_sum")
        count = math.prod(x.shape[axis] for axis in axes)

        def divide(*i: Expr) -> Expr:
            if not is_float(dtype):
                return te.cast(dtype, total[i] / count)
            # A multiplication is several times cheaper than a division; for floats it differs by one rounding.
            return te.cast(dtype, total[i] * reciprocal(count, total.dtype))

        return te.compute(shape, divide, name=call.name)

    return Lowered(shape, dtype, build)


def _sum_wide(value: Expr, axes: Sequence[Axis]) -> Expr:
    """The sum in a type that a sum of halves or of short integers does not exceed."""
    is_short = not is_float(value.dtype) and item_bytes(value.dtype) < item_bytes("int32")
    return te.sum(te.cast("int32" if is_short else sum_type(value.dtype), value), axes)


def _reduce(source: Tensor, axes: Sequence[int], combine: _Combine, shape: Shape, keepdims: bool, name: str) -> Tensor:
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

    Of equal elements it is the first; a NaN counts as larger than any number, as in NumPy.
    Raises: DefinitionError when there is no such axis, or `index` does not hold all indices along it.
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


def _softmax(call: OpCall) -> Lowered:
    """exp(x - max(x)) / sum(exp(x - max(x))) along `axis`, with one division for each sum."""
    axis, shape = call.require_axis(), call.types[0].shape

    def build(x: Tensor) -> Tensor:
        _, power, total = _exponentials(x, axis, call.name)
        # One division a row instead of one an element.
        inverse = te.compute(total.shape, lambda *i: 1.0 / total[i], name=f"{call.name}_inverse")

        def share(*i: Expr) -> Expr:
            return te.cast(x.dtype, power[i] * inverse[_without(i, axis)])

        return te.compute(shape, share, name=call.name)

    return Lowered(shape, call.types[0].dtype, build)


def _log_softmax(call: OpCall) -> Lowered:
    """x - max(x) - log(sum(exp(x - max(x)))) along `axis`."""
    axis, shape = call.require_axis(), call.types[0].shape

    def build(x: Tensor) -> Tensor:
        peak, _, total = _exponentials(x, axis, call.name)
        # log of the sum and not of the quotient: small probabilities would be 0 and their logarithm infinite.
        log = te.compute(total.shape, lambda *i: te.log(total[i]), name=f"{call.name}_log")

        def difference(*i: Expr) -> Expr:
            row = _without(i, axis)
            return te.cast(x.dtype, te.cast(log.dtype, x[i]) - te.cast(log.dtype, peak[row]) - log[row])

        return te.compute(shape, difference, name=call.name)

    return Lowered(shape, call.types[0].dtype, build)


def _fmax(value: Expr, axes: Sequence[Axis]) -> Expr:
    return Reduce("fmax", value, tuple(axes))


def _exponentials(x: Tensor, axis: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """max(x), exp(x - max(x)) and the sums of these along `axis`; the first and the last are without it. Of halves the
    powers are float32: a row of many may sum to more than the largest float16.
    """
    wide = sum_type(x.dtype)
    row_shape = tuple(extent for dim, extent in enumerate(x.shape) if dim != axis)
    # The largest exponent becomes 0: no power overflows, and the sum is at least 1.
    # fmax is one instruction on x86, a maximum that keeps NaNs three; the sum of the powers keeps them in any case.
    peak = _reduce(x, (axis,), _fmax, row_shape, keepdims=False, name=f"{name}_max")

    def exponential(*i: Expr) -> Expr:
        return te.exp(te.cast(wide, x[i]) - te.cast(wide, peak[_without(i, axis)]))

    power = te.compute(x.shape, exponential, name=f"{name}_exp")
    return peak, power, _reduce(power, (axis,), te.sum, row_shape, keepdims=False, name=f"{name}_sum")


def _without(indices: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
    return indices[:axis] + indices[axis + 1 :]


def _reduce_array(function: Callable[..., Array]) -> _Evaluate:
    def evaluate(call: OpCall, arrays: Sequence[Array]) -> Array:
        (x,) = arrays
        return function(widen(x), axis=call.ints("axes"), keepdims=call.flag("keepdims"))

    return evaluate


def _extreme_array(function: Callable[..., Array], *, largest: bool) -> _Evaluate:
    """The largest or smallest; of no elements the least or greatest number there is."""

    def evaluate(call: OpCall, arrays: Sequence[Array]) -> Array:
        (x,) = arrays
        if x.size:
            return _reduce_array(function)(call, arrays)
        if x.dtype == bool:
            bound: float = not largest
        elif x.dtype.kind in "iu":
            bound = np.iinfo(x.dtype).min if largest else np.iinfo(x.dtype).max
        else:
            bound = -math.inf if largest else math.inf
        return function(x, axis=call.ints("axes"), keepdims=call.flag("keepdims"), initial=x.dtype.type(bound))

    return evaluate


def _mean_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    if x.size:
        return _reduce_array(np.mean)(call, arrays)
    # As NumPy has it, which would warn.
    return np.full(_reduced_shape(call), math.nan)


def _softmax_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    axis, wide = call.integer("axis"), widen(x)
    powers = np.exp(wide - wide.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _log_softmax_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    axis, wide = call.integer("axis"), widen(x)
    shifted = wide - wide.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


_KIND = FusionKind.REDUCTION

OPERATORS = (
    _reduction("reduce_prod", te.prod, _reduce_array(np.prod)),
    _reduction("reduce_sum", te.sum, _reduce_array(np.sum)),
    Op("reduce_mean", 1, _KIND, _mean, _mean_array, {"axes": tuple, "keepdims": bool}),
    _reduction("reduce_max", te.max, _extreme_array(np.max, largest=True)),
    _reduction("reduce_min", te.min, _extreme_array(np.min, largest=False)),
    Op("softmax", 1, _KIND, _softmax, _softmax_array, {"axis": int}),
    Op("log_softmax", 1, _KIND, _log_softmax, _log_softmax_array, {"axis": int}),
)
