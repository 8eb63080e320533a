"""Conversions between floats and bytes with a scale and a zero point.

Passes fold them into their neighbors; what is left is computed as said here.
"""

from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.ir.dot import BYTES
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall
from retune.compiler.te.tensor import Tensor


def _require_scale(call: OpCall) -> int:
    x, scale, zero = call.types
    axis = call.integer("axis")
    sizes = {(), (1,)} | ({(x.shape[axis],)} if 0 <= axis < len(x.shape) else set())
    fits = scale.shape in sizes and zero.shape in sizes and scale.dtype.startswith("float")
    call.require(fits, f"needs one float scale and zero point, or one for each place of axis {axis}")
    return axis


def _at(part: Tensor, indices: tuple[Expr, ...], axis: int) -> Expr:
    """The scale or zero point of an element."""
    if not part.shape:
        return part[()]
    return part[0 if part.shape == (1,) else indices[axis]]


def _quantize(call: OpCall) -> Lowered:
    """round(x / scale) + zero, clipped, of (x, scale, zero); one scale, or one for each index along an axis."""
    axis = _require_scale(call)
    x, scale, zero = call.types
    call.require(x.dtype == scale.dtype, "the scale must have the dtype of the numbers")

    def build(numbers: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        limits = np.iinfo(zero.dtype)

        def body(*i: Expr) -> Expr:
            # ONNX's order: the quotient is rounded to even, then the zero point is added, then the sum is clipped,
            # still as a float, since a cast of what is out of range has no defined result.
            shifted = te.round(numbers[i] / _at(scales, i, axis)) + te.cast(x.dtype, _at(zeros, i, axis))
            return te.cast(zero.dtype, te.minimum(te.maximum(shifted, float(limits.min)), float(limits.max)))

        return te.compute(x.shape, body, name=call.name)

    return Lowered(x.shape, zero.dtype, build)


def _dequantize(call: OpCall) -> Lowered:
    """(x - zero) * scale of (x, scale, zero)."""
    axis = _require_scale(call)
    x, scale, zero = call.types
    call.require(x.dtype == zero.dtype, "the zero point must have the dtype of the numbers")

    def build(numbers: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        def body(*i: Expr) -> Expr:
            # In int64: the difference of two bytes, or of two int32, may not fit their type.
            shifted = te.cast("int64", numbers[i]) - te.cast("int64", _at(zeros, i, axis))
            return te.cast(scale.dtype, shifted) * _at(scales, i, axis)

        return te.compute(x.shape, body, name=call.name)

    return Lowered(x.shape, scale.dtype, build)


def _columns(call: OpCall, arrays: Sequence[Array]) -> list[Array]:
    """The scale and the zero point as they combine with the numbers."""
    x, *others = arrays
    column = [-1 if axis == call.integer("axis") else 1 for axis in range(x.ndim)]
    return [part.reshape(column if part.size > 1 else ()) for part in others]


def _quantize_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    scale, zero = _columns(call, arrays)
    limits = np.iinfo(arrays[2].dtype)
    return np.clip(np.round(arrays[0] / scale) + zero, limits.min, limits.max)


def _dequantize_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    scale, zero = _columns(call, arrays)
    return np.asarray((arrays[0].astype(np.int64) - zero).astype(scale.dtype) * scale)


def _lookup(call: OpCall) -> Lowered:
    """The element of a table at each byte, whose bits are read as uint8, of (x, table)."""
    x, table = call.types
    call.require(x.dtype in BYTES and table.shape == (256,), "needs bytes and a table of 256 elements")

    def build(numbers: Tensor, results: Tensor) -> Tensor:
        def body(*i: Expr) -> Expr:
            return results[te.cast("int32", te.bits("uint8", numbers[i]))]

        return te.compute(x.shape, body, name=call.name)

    return Lowered(x.shape, table.dtype, build)


OPERATORS = (
    Op("lookup", 2, FusionKind.ELEMENTWISE, _lookup, lambda _, arrays: np.asarray(arrays[1][arrays[0].view("uint8")])),
    Op("quantize", 3, FusionKind.OPAQUE, _quantize, _quantize_array, {"axis": int}),
    Op("dequantize", 3, FusionKind.OPAQUE, _dequantize, _dequantize_array, {"axis": int}),
)
