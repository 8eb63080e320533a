"""Vectorized float32 power with an error of at most 1 ulp, and the special values of C's pow.

The code has no branches. It computes in float64, where 2**(y log2 |x|) needs no special cases: subnormal numbers are
normal there, nothing overflows, and the result is rounded to float32 once.

The coefficients minimize the largest relative error, as those of vector_math.
"""

import math

from retune.compiler.codegen.types import llvm_type
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.codegen.vector_builder import VectorBuilder

_MANTISSA_BITS = 52
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
_BIAS = 1023
_ONE_BITS = _BIAS << _MANTISSA_BITS
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
"""The bits of sqrt(1/2), where the reduced argument of the logarithm begins."""
_WHOLE_BITS = 0x4330000000000000
"""The bits of 2**52: with a small integer in the lowest bits, 2**52 plus that number."""
_ROUNDER = 1.5 * 2.0**52
"""Adding it to a small number leaves the nearest integer in the low bits of the sum."""
_MOST = 200.0
"""2 to this power overflows float32, and to its negative is zero."""

# The exponent, up to 150 here, multiplies the logarithm's error, so this needs 7 bits more than `_EXP2`.
_LOG2 = (2.885390081790084, 0.9617966733369807, 0.5770835862279824, 0.4116726313837382, 0.3407318892480985)
"""log2((1 + s) / (1 - s)) / s in powers of s**2 for sqrt(1/2) <= (1 + s) / (1 - s) <= sqrt(2), to 2**-37."""
_EXP2 = (
    1.0, 0.6931472028550657, 0.2402264791362875, 0.0555033247112598, 0.00961843735766928, 0.0013398874414147037,
    0.00015353361908984652,
)  # fmt: skip
"""2**r for |r| <= 1/2, to 2**-28."""


def pow(emit: Emit, base: Value, exponent: Value) -> Value:
    """2**(y log2 |x|), negative for an odd y of a negative x."""
    write = VectorBuilder(emit, base.lanes)
    power = _two_to(emit, _log2(emit, write.magnitude(base)), exponent)
    return _with_special_powers(write, base, exponent, power)


def _with_special_powers(write: VectorBuilder, base: Value, exponent: Value, power: Value) -> Value:
    """The power of a base, from that of its magnitude: the sign, and the special values."""
    size = write.magnitude(base)
    unit, zero = write.number(1.0), write.number(0.0)
    # Whatever the other operand, NaN and infinity included.
    no_power = write.either(write.test("oeq", size, unit), write.test("oeq", exponent, zero))
    result = write.choose(no_power, unit, power)
    # An even number, an odd number, or none: halving tells them apart; infinities are even.
    half = write.mul(exponent, write.number(0.5))
    fraction = write.test("une", write.call("floor", exponent), exponent)
    uneven = write.test("une", write.call("floor", half), half)
    result = write.choose(write.both(uneven, write.negate(fraction)), write.with_sign(result, base), result)
    finite = write.test("olt", size, write.number(math.inf))
    undefined = write.both(fraction, write.both(finite, write.test("olt", base, zero)))
    return write.choose(undefined, write.number(math.nan), result)


def _widen(emit: Emit, value: Value) -> Value:
    return emit(f"fpext {value.typed} to {llvm_type('float64', value.lanes)}", value.lanes, "float64")


def _log2(emit: Emit, size: Value) -> Value:
    """k + log2(m) in float64 with size = 2**k m, which is not negative; log2(m) by the series of atanh."""
    write = VectorBuilder(emit, size.lanes, "float64")
    wide = _widen(emit, size)
    offset = write.binary("add", write.bits(wide), write.whole(_ONE_BITS - _ROOT_HALF_BITS))
    power = write.binary("lshr", offset, write.whole(_MANTISSA_BITS))
    count = write.sub(
        write.from_bits(write.binary("or", power, write.whole(_WHOLE_BITS))), write.number(2.0**52 + _BIAS)
    )
    mantissa = write.binary("and", offset, write.whole(_MANTISSA_MASK))
    reduced = write.from_bits(write.binary("add", mantissa, write.whole(_ROOT_HALF_BITS)))
    unit = write.number(1.0)
    # atanh's series in s = (m - 1)/(m + 1) has odd powers only and |s| < 0.172, so five terms reach 2**-37.
    ratio = write.div(write.sub(reduced, unit), write.add(reduced, unit))
    result = write.fma(ratio, write.polynomial(write.mul(ratio, ratio), _LOG2), count)
    # Infinity and zero cannot be split into exponent and mantissa.
    result = write.choose(write.test("olt", wide, write.number(math.inf)), result, wide)
    return write.choose(write.test("oeq", wide, write.number(0.0)), write.number(-math.inf), result)


def _two_to(emit: Emit, logarithm: Value, exponent: Value) -> Value:
    """2**(logarithm * exponent), rounded to float32."""
    write = VectorBuilder(emit, logarithm.lanes, "float64")
    total = write.mul(logarithm, _widen(emit, exponent))
    # Within the range of the exponent arithmetic below; a NaN passes both comparisons.
    total = write.at_least(write.at_most(total, _MOST), -_MOST)
    shifted = write.add(total, write.number(_ROUNDER))
    fraction = write.sub(total, write.sub(shifted, write.number(_ROUNDER)))
    # The integer is in the low bits of the sum; the shift moves it to the exponent and drops the rest.
    scale = write.binary("shl", write.bits(shifted), write.whole(_MANTISSA_BITS))
    scale = write.from_bits(write.binary("add", scale, write.whole(_ONE_BITS)))
    wide = write.mul(write.polynomial(fraction, _EXP2), scale)
    return emit(f"fptrunc {wide.typed} to {llvm_type('float32', wide.lanes)}", wide.lanes, "float32")
