"""Emits the conversions between float32 and floats of a byte or less.

A narrow float is its code in an i8. The formats are those of `ml_dtypes`: rounding is to nearest, subnormal
numbers are kept, and what is too large becomes what the format has for it (infinity, NaN or the largest number).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from retune.compiler.codegen.types import llvm_type
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.codegen.vector_builder import VectorBuilder
from retune.compiler.core.dtype import epsilon, finite_limit, item_bits, least_normal

_FRACTION = 23
"""Fraction bits of float32."""
_BIAS = 127
_INFINITY = 0x7F800000
_NAN = 0x7FC00000
_POWERS = "float8_e8m0fnu"
"""Powers of two without sign: a code is the exponent of a float32."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A format with sign, exponent and fraction; codes are without their sign."""

    bits: int
    fraction: int
    bias: int
    top: int
    """The code of the largest number."""
    overflow: int
    nan: int
    has_negative_zero: bool

    @property
    def shift(self) -> int:
        """Fraction bits that float32 has more."""
        return _FRACTION - self.fraction

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def least_normal(self) -> int:
        """The bits in float32 of the smallest number that is not subnormal."""
        return (_BIAS + 1 - self.bias) << _FRACTION


@cache
def _format(dtype: str) -> _Format:
    with np.errstate(all="ignore"):
        values = np.array([finite_limit(dtype, is_least=False), np.inf, np.nan, -0.0], "float32").astype(dtype)
    top, overflow, nan, zero = map(int, values.view("uint8"))
    # The smallest normal number is 2^(1 - bias).
    bias, fraction = 1 - int(np.log2(least_normal(dtype))), -int(np.log2(epsilon(dtype)))
    return _Format(item_bits(dtype), fraction, bias, top, overflow, nan, zero != 0)


def to_float32(emit: Emit, value: Value) -> Value:
    """A narrow float as float32, exactly."""
    write = VectorBuilder(emit, value.lanes)
    code = emit(f"zext {value.typed} to {llvm_type('int32', value.lanes)}", value.lanes, "int32")
    if value.dtype == _POWERS:
        power = write.binary("shl", code, write.whole(_FRACTION))
        # 2^-127 is subnormal in float32, and the last code is a NaN.
        power = write.choose(write.test("eq", code, write.whole(0)), write.whole(1 << (_FRACTION - 1)), power)
        nan = write.test("eq", code, write.whole(0xFF))
        return write.from_bits(write.choose(nan, write.whole(_NAN), power))
    form = _format(value.dtype)
    magnitude = write.binary("and", code, write.whole(form.sign - 1))
    shifted = write.binary("shl", magnitude, write.whole(form.shift))
    # Scaled by a power of two, which also normalizes subnormal numbers.
    bits = write.bits(write.mul(write.from_bits(shifted), write.number(2.0 ** (_BIAS - form.bias))))
    if form.top < form.sign - 1:  # beyond the largest number are infinity and NaNs
        special = write.binary("or", shifted, write.whole(_INFINITY))
        bits = write.choose(write.test("sgt", magnitude, write.whole(form.top)), special, bits)
    negative = write.binary("and", code, write.whole(form.sign))
    bits = write.binary("or", bits, write.binary("shl", negative, write.whole(32 - form.bits)))
    if not form.has_negative_zero:  # its code is a NaN
        bits = write.choose(write.test("eq", code, write.whole(form.sign)), write.whole(_NAN - (1 << 31)), bits)
    return write.from_bits(bits)


def from_float32(emit: Emit, value: Value, dtype: str) -> Value:
    """A float32 as a narrow float, rounded to nearest, ties to even (powers of two: up)."""
    write = VectorBuilder(emit, value.lanes)
    bits = write.bits(value)
    code = _power(write, bits) if dtype == _POWERS else _round(write, value, bits, _format(dtype))
    return emit(f"trunc {code.typed} to {llvm_type(dtype, value.lanes)}", value.lanes, dtype)


def _power(write: VectorBuilder, bits: Value) -> Value:
    """The code of the nearest power of two; a NaN for zero, negative numbers and infinity."""
    # As an unsigned number, a float with a sign is larger than all others.
    outside = write.test("ugt", write.binary("sub", bits, write.whole(1)), write.whole(_INFINITY - 2))
    # As ml_dtypes and ONNX round: halfway goes up, and of subnormal numbers all above 2^-127.
    is_normal = write.test("sge", bits, write.whole(1 << _FRACTION))
    half = write.choose(is_normal, write.whole(1 << (_FRACTION - 1)), write.whole((1 << (_FRACTION - 1)) - 1))
    nearest = write.binary("lshr", write.binary("add", bits, half), write.whole(_FRACTION))
    return write.choose(outside, write.whole(0xFF), nearest)


def _nearest(write: VectorBuilder, bits: Value, shift: int) -> Value:
    """`bits` without the last `shift`, rounded to nearest even."""
    odd = write.binary("and", write.binary("lshr", bits, write.whole(shift)), write.whole(1))
    half = write.binary("add", odd, write.whole((1 << (shift - 1)) - 1))
    return write.binary("lshr", write.binary("add", bits, half), write.whole(shift))


def _round(write: VectorBuilder, value: Value, bits: Value, form: _Format) -> Value:
    magnitude = write.binary("and", bits, write.whole(0x7FFFFFFF))
    normal = _nearest(write, magnitude, form.shift)
    normal = write.binary("sub", normal, write.whole((_BIAS - form.bias) << form.fraction))
    # Adding the number whose last place is the smallest subnormal rounds to a multiple of it.
    anchor = write.number(2.0 ** (1 - form.bias + form.shift))
    small = write.bits(write.add(write.from_bits(magnitude), anchor))
    small = write.binary("sub", small, write.bits(anchor))
    code = write.choose(write.test("slt", magnitude, write.whole(form.least_normal)), small, normal)
    code = write.choose(write.test("sgt", code, write.whole(form.top)), write.whole(form.overflow), code)
    negative = write.binary("and", write.binary("lshr", bits, write.whole(32 - form.bits)), write.whole(form.sign))
    signed = write.binary("or", code, negative)
    nan = write.whole(form.nan)
    if form.has_negative_zero:
        nan = write.binary("xor", nan, negative)
    else:
        signed = write.choose(write.test("eq", code, write.whole(0)), code, signed)
    return write.choose(write.test("uno", value, value), nan, signed)
