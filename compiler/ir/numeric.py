"""The meaning of operators and intrinsics, in NumPy, to which generated code is compared.

16-bit floats are computed in float32 and rounded once.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from retune.compiler.core.dtype import HALVES, NARROW_INTEGERS, Array, arithmetic_type
from retune.compiler.ir.expr import BinaryOp, is_float


def _truncated_quotient(lhs: Array, rhs: Array) -> Array:
    if is_float(np.asarray(lhs).dtype.name):
        return np.asarray(np.true_divide(lhs, rhs))
    # NumPy rounds down: where the signs differ and a remainder is left, the truncated quotient is larger by 1.
    down, rest = np.floor_divide(lhs, rhs), np.mod(lhs, rhs)
    return np.asarray(np.where((rest != 0) & ((lhs < 0) != (rhs < 0)), down + np.ones_like(down), down))


BINARY: dict[BinaryOp, Callable[[Array, Array], Array]] = {
    BinaryOp.ADD: np.add, BinaryOp.SUB: np.subtract, BinaryOp.MUL: np.multiply, BinaryOp.DIV: _truncated_quotient,
    BinaryOp.FLOORDIV: np.floor_divide, BinaryOp.FLOORMOD: np.mod, BinaryOp.MIN: np.minimum, BinaryOp.MAX: np.maximum,
    BinaryOp.FMAX: np.fmax, BinaryOp.AND: np.logical_and, BinaryOp.OR: np.logical_or, BinaryOp.EQ: np.equal,
    BinaryOp.NE: np.not_equal, BinaryOp.LT: np.less, BinaryOp.LE: np.less_equal, BinaryOp.BIT_AND: np.bitwise_and,
    BinaryOp.BIT_OR: np.bitwise_or, BinaryOp.BIT_XOR: np.bitwise_xor, BinaryOp.SHL: np.left_shift,
    BinaryOp.SHR: np.right_shift,
}  # fmt: skip
"""The result of an operator on two arrays whose shapes broadcast; callers silence overflow and division by zero."""

# NumPy has no erf; that of Python is in float64.
_erf = np.frompyfunc(math.erf, 1, 1)


def _unsigned_bits(value: Array) -> Array:
    """The bits of integers as unsigned numbers."""
    return value.view(f"uint{8 * value.dtype.itemsize}")


def _leading_zeros(value: Array) -> Array:
    width, filled = 8 * value.dtype.itemsize, _unsigned_bits(value)
    # Smearing of the highest bit (Hacker's Delight): the set bits are then counted in one step.
    for shift in (1, 2, 4, 8, 16, 32):  # every bit below the highest set bit is set
        if shift < width:
            filled = filled | (filled >> filled.dtype.type(shift))
    return np.asarray(width - np.bitwise_count(filled).astype("int32"))


_CALLS: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": _erf,
    # exp(-x) may overflow to infinity, whose inverse is the right 0.
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "pow": np.power,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": lambda x: np.rint(x) if is_float(x.dtype.name) else x,
    "abs": np.abs,
    "fma": lambda a, b, c: a * b + c,
    "isnan": np.isnan,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "trunc": np.trunc,
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "popcount": lambda x: np.bitwise_count(_unsigned_bits(x)),  # NumPy's counts the bits of the absolute value
    "clz": _leading_zeros,
}


def convert(values: Array, dtype: str) -> Array:
    # NumPy knows no conversion between two types of ml_dtypes.
    wide = values.astype(arithmetic_type(values.dtype.name))
    return wide.astype(arithmetic_type(dtype)).astype(dtype) if dtype in NARROW_INTEGERS else wide.astype(dtype)


def intrinsic(name: str, values: Sequence[Array], dtype: str) -> Array:
    """The result of an intrinsic on arrays of the same element type."""
    if name == "bits":  # the value of another type, of as many bytes, that is the same in memory
        return np.ascontiguousarray(values[0]).view(dtype).reshape(values[0].shape)
    if values[0].dtype.name in HALVES:
        values = [value.astype("float32") for value in values]
    return np.asarray(_CALLS[name](*values)).astype(dtype)
