"""Interpolation along axes: each result element is a weighted sum of a few operand elements, the same for all rows."""

from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.core.dtype import is_float
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.indexing import inside, inside_array
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, widen
from retune.compiler.te.tensor import LOOKS_UP_TABLES, Tensor


def _resample(call: OpCall) -> Lowered:
    """Along each axis the sum over taps of weights[i, tap] * x at places[i, tap].

    Operands: x, then for each of the axes, ascending, its places and weights, both of shape (new extent, taps).
    """
    x, axes = call.types[0], call.require_axes()
    call.require(is_float(x.dtype), "x must be of floats")
    call.require(len(call.types) == 1 + 2 * len(axes), "each axis takes an operand of places and one of weights")
    shape = list(x.shape)
    # Halves are summed in float32, as in reductions.
    wide = "float64" if x.dtype == "float64" else "float32"
    for axis, places, weights in zip(axes, call.types[1::2], call.types[2::2], strict=True):
        integers = places.dtype.startswith(("int", "uint"))
        call.require(integers and weights.dtype == "float32", "places must be integers and weights float32")
        alike = len(places.shape) == 2 and places.shape == weights.shape and places.shape[1] > 0
        call.require(alike, "places and weights must be (new extent, taps), of one tap at least")
        shape[axis] = places.shape[0]

    def build(source: Tensor, *tables: Tensor) -> Tensor:
        along = tuple(zip(axes, tables[::2], tables[1::2], strict=True))

        # Axis within axis: every combination of their taps is a term.
        def weigh(result: tuple[Expr, ...], point: tuple[Expr, ...], level: int) -> Expr:
            if level == len(along):
                return source[point] if x.dtype == wide else te.cast(wide, source[point])
            axis, places, weights = along[level]
            total: Expr | None = None
            for tap in range(places.shape[1]):
                at = inside(places[(result[axis], te.const(tap))], source.shape[axis])
                weight = weights[(result[axis], te.const(tap))]
                inner = weigh(result, (*point[:axis], at, *point[axis + 1 :]), level + 1)
                term = inner * (weight if wide == "float32" else te.cast(wide, weight))
                total = term if total is None else total + term
            assert total is not None
            return total

        def body(*i: Expr) -> Expr:
            value = weigh(i, i, 0)
            return value if x.dtype == wide else te.cast(x.dtype, value)

        return te.compute(tuple(shape), body, name=call.name, attrs={LOOKS_UP_TABLES: True})

    return Lowered(tuple(shape), x.dtype, build)


def _resample_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    result = widen(arrays[0])
    for axis, places, weights in zip(call.ints("axes"), arrays[1::2], arrays[2::2], strict=True):
        taken = np.take(result, inside_array(places, result.shape[axis]), axis)
        behind = (1,) * (result.ndim - axis - 1)
        result = np.asarray((taken * weights.reshape(*weights.shape, *behind)).sum(axis + 1))
    return result


OPERATORS = (Op("resample", None, FusionKind.INJECTIVE, _resample, _resample_array, {"axes": tuple}),)
