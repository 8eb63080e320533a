"""In: float64 scalars. Out: the instructions of a function of them, at most 3 ulp off, for targets without a library.

Always: straight-line code without calls; NaN in, NaN out. Subnormal numbers are numbers like others, as arguments and
as results. Results round to infinity, zero and one where the exact values do.

The coefficients are those of the polynomials that meet the function at Chebyshev's points; where a range is that of a
reduced argument it is a little wider than need be.
"""

import math

from compiler.codegen.lane_writer import LaneWriter
from compiler.codegen.values import Emit, Value
from compiler.codegen.vector_pow import with_special_powers

Pair = tuple[Value, Value]
"""A number as the sum of a float and of another below its last place."""

_MANTISSA_BITS = 52
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
_ONE_BITS = 1023 << _MANTISSA_BITS
_LEAST_NORMAL = 2.0**-1022
_LIFT = 54
"""By so many powers of two subnormal numbers are scaled up."""
_LOG2_E = 1.4426950408889634
_LN2, _LN2_REST = 0.6931471805599453, 2.3190468138462996e-17
_ROUNDER = 1.5 * 2.0**52
"""Added to a small number it leaves the nearest whole number in the low bits of the sum."""
_ROUNDER_BITS = 0x4338000000000000

_EXP_BELOW, _EXP_ABOVE = -746.0, 710.0
"""exp is less than half the least float64, and overflows, here."""
_EXPM1 = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326084,
    0.0013888888888883711,
    0.0001984126987500228,
    2.480158732567746e-05,
    2.755725517000089e-06,
    2.755727347871858e-07,
    2.5105312729622103e-08,
    2.09147553258932e-09,
)
"""(expm1(r) - r) / r**2 for |r| <= ln 2 / 2, to 2**-61 of expm1."""

_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
"""The bits of sqrt(1/2), where the reduced argument of the logarithms begins."""
_LOG = (
    0.6666666666666666,
    0.40000000000000885,
    0.28571428570799784,
    0.22222222392581045,
    0.18181795547521137,
    0.15386244737621665,
    0.13268638369266825,
    0.13088034850927555,
)
"""(log((1 + s) / (1 - s)) / s - 2) / s**2 in powers of s**2 where that logarithm is at most ln 2 / 2."""
_TWO_LOG2_E, _TWO_LOG2_E_REST = 2.8853900817779268, 4.0710547481862066e-17
_CUBIC, _CUBIC_REST = 0.9617966939259756, 5.0577616648125907e-17
"""2 / (3 ln 2)."""
_LOG2_TAIL = (
    0.5770780163555858,
    0.4121985831098259,
    0.32059889868375463,
    0.26230804540291236,
    0.22196696307527658,
    0.19167457085828457,
    0.1863199122227143,
)
"""log2((1 + s) / (1 - s)) without its terms in s and s**3, by s**5, in powers of s**2."""
_MOST_POWER = 1100.0
"""2 to this power overflows, and to its negative is zero."""

_LARGE = 20.0
"""tanh rounds to one from here on, and exp(-x) is nothing beside exp(x)."""
_HUGE = 2.0**30
"""x**2 + 1 rounds to x**2 from here on."""

_ERF_ONE = 6.0
"""erf rounds to one from here on."""
_ERF = (
    0.1283791670955126,
    -0.37612638903183754,
    0.1128379167095512,
    -0.02686617064512984,
    0.0052239776254232985,
    -0.000854832702193483,
    0.00012055332902888736,
    -1.4925647567519332e-05,
    1.6462045441468418e-06,
    -1.6364642158167616e-07,
    1.4792401209404813e-08,
    -1.216456005728345e-09,
    8.709045129053106e-11,
    -4.230945824295338e-12,
)
"""(erf(x) - x) / x in powers of x**2 for |x| <= 1, to 2**-56 of erf."""
_ERFCX = (
    0.427583576155807,
    -0.8196360443516935,
    0.5697080079951411,
    -0.1800761010525456,
    -0.025632378778924134,
    0.027560994132451975,
    0.006425220289869317,
    -0.004427578825392752,
    -0.002550700288640695,
    0.00028471052280882236,
    0.0005945693437354847,
    0.0006514895598658252,
    -0.0008222892207949663,
    0.0008829744131586063,
    -0.0009814738834281634,
    0.0005483064936658074,
    -0.00011326977313880106,
)
"""exp(x**2) (1 - erf(x)) in powers of (x - 1) / (x + 2) for 1 <= x <= 6, to 2**-59 of erf."""


def product(write: LaneWriter, one: Value, other: Value) -> Pair:
    """The product of two floats, exactly."""
    high = write.mul(one, other)
    return high, write.fma(one, other, write.negative(high))


def total(write: LaneWriter, larger: Value, smaller: Value) -> Pair:
    """The sum of two floats, exactly; the first is not the smaller one."""
    high = write.add(larger, smaller)
    return high, write.sub(smaller, write.sub(high, larger))


def exp(emit: Emit, x: Value) -> Value:
    """2**n * (1 + expm1(r)) with x = n ln 2 + r."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    power, grown = _reduced_expm1(write, write.at_least(write.at_most(x, _EXP_ABOVE), _EXP_BELOW))
    return _scaled(write, write.add(grown, write.number(1.0)), power)


def log(emit: Emit, x: Value) -> Value:
    """The logarithm; -infinity of zero, NaN of what is negative."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    result = _log(write, x, write.number(0.0))
    result = write.choose(write.test("olt", x, write.number(math.inf)), result, x)
    result = write.choose(write.test("olt", x, write.number(0.0)), write.number(math.nan), result)
    return write.choose(write.test("oeq", x, write.number(0.0)), write.number(-math.inf), result)


def pow(emit: Emit, base: Value, exponent: Value) -> Value:
    """2**(y log2 |x|), the logarithm with 11 bits more than a float has; the special values of C's pow."""
    write = LaneWriter(emit, base.lanes, base.dtype)
    size = write.magnitude(base)
    high, low = _log2(write, size)
    power, rest = product(write, exponent, high)
    rest = write.fma(exponent, low, rest)
    inside = write.test("olt", write.magnitude(power), write.number(_MOST_POWER))
    rest = write.choose(inside, rest, write.number(0.0))
    power = write.at_least(write.at_most(power, _MOST_POWER), -_MOST_POWER)
    shifted = write.add(power, write.number(_ROUNDER))
    left = write.add(write.sub(power, write.sub(shifted, write.number(_ROUNDER))), rest)
    grown = _expm1_near_zero(write, write.mul(left, write.number(_LN2)))
    count = write.binary("sub", write.bits(shifted), write.whole(_ROUNDER_BITS))
    return with_special_powers(write, base, exponent, _scaled(write, write.add(grown, write.number(1.0)), count))


def tanh(emit: Emit, x: Value) -> Value:
    """m / (m + 2) with m = expm1(2 |x|), and the sign of x."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    size = write.at_most(write.magnitude(x), _LARGE)
    grown = _expm1(write, write.add(size, size))
    return write.with_sign(write.div(grown, write.add(grown, write.number(2.0))), x)


def sinh(emit: Emit, x: Value) -> Value:
    """(m + m / (m + 1)) / 2 with m = expm1(|x|), and the sign of x."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    size = write.magnitude(x)
    grown = _expm1(write, write.at_most(size, _LARGE))
    both = write.add(grown, write.div(grown, write.add(grown, write.number(1.0))))
    return write.with_sign(_with_large(write, size, write.mul(both, write.number(0.5))), x)


def cosh(emit: Emit, x: Value) -> Value:
    """(e + 1 / e) / 2 with e = exp(|x|)."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    size, half = write.magnitude(x), write.number(0.5)
    decay = exp(emit, write.at_most(size, _LARGE))
    return _with_large(write, size, write.add(write.mul(decay, half), write.div(half, decay)))


def asinh(emit: Emit, x: Value) -> Value:
    """log1p(|x| + x**2 / (1 + sqrt(1 + x**2))), and the sign of x."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    one, size = write.number(1.0), write.magnitude(x)
    kept = write.at_most(size, _HUGE)
    square = write.mul(kept, kept)
    root = write.call("sqrt", write.add(one, square))
    small = _log1p(write, write.add(kept, write.div(square, write.add(one, root))))
    return write.with_sign(_with_log_of_double(write, size, small), x)


def acosh(emit: Emit, x: Value) -> Value:
    """log1p(t + sqrt(2 t + t**2)) with t = x - 1; NaN for what is less than one."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    more = write.sub(write.at_most(x, _HUGE), write.number(1.0))
    root = write.call("sqrt", write.fma(more, more, write.add(more, more)))
    found = _with_log_of_double(write, x, _log1p(write, write.add(more, root)))
    return write.choose(write.test("olt", x, write.number(1.0)), write.number(math.nan), found)


def atanh(emit: Emit, x: Value) -> Value:
    """log1p(2 |x| / (1 - |x|)) / 2, and the sign of x; NaN beyond one."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    one, size = write.number(1.0), write.magnitude(x)
    ratio = write.div(write.add(size, size), write.sub(one, size))
    found = write.mul(_log1p(write, ratio), write.number(0.5))
    found = write.choose(write.test("oeq", size, one), write.number(math.inf), found)
    found = write.choose(write.test("ogt", size, one), write.number(math.nan), found)
    return write.with_sign(found, x)


def erf(emit: Emit, x: Value) -> Value:
    """An odd polynomial for |x| < 1, else 1 - exp(-x**2) p with a polynomial p in (|x| - 1) / (|x| + 2)."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    one = write.number(1.0)
    size = write.at_most(write.magnitude(x), _ERF_ONE)
    square = write.mul(size, size)
    inner = write.fma(write.polynomial(square, _ERF), size, size)
    place = write.div(write.sub(size, one), write.add(size, write.number(2.0)))
    decay = exp(emit, write.negative(square))
    outer = write.sub(one, write.mul(decay, write.polynomial(place, _ERFCX)))
    return write.with_sign(write.choose(write.test("olt", size, one), inner, outer), x)


def _reduced_expm1(write: LaneWriter, x: Value) -> Pair:
    """(the nearest n to x / ln 2 as an integer, expm1(x - n ln 2)) for |x| < 2**20."""
    shifted = write.fma(x, write.number(_LOG2_E), write.number(_ROUNDER))
    count = write.sub(shifted, write.number(_ROUNDER))
    rest = write.fma(count, write.number(-_LN2), x)
    rest = write.fma(count, write.number(-_LN2_REST), rest)
    return write.binary("sub", write.bits(shifted), write.whole(_ROUNDER_BITS)), _expm1_near_zero(write, rest)


def _expm1_near_zero(write: LaneWriter, rest: Value) -> Value:
    return write.fma(write.mul(rest, rest), write.polynomial(rest, _EXPM1), rest)


def _expm1(write: LaneWriter, x: Value) -> Value:
    """expm1 of what is neither negative nor above 40."""
    power, grown = _reduced_expm1(write, x)
    scale = _power_of_two(write, power)
    return write.fma(scale, grown, write.sub(scale, write.number(1.0)))


def _power_of_two(write: LaneWriter, power: Value) -> Value:
    """2**power for integers -1022 .. 1023."""
    return write.from_bits(write.binary("add", write.binary("shl", power, write.whole(52)), write.whole(_ONE_BITS)))


def _scaled(write: LaneWriter, value: Value, power: Value) -> Value:
    """`value` times 2**power, in two factors, so that subnormal results round once."""
    half = write.binary("ashr", power, write.whole(1))
    rest = write.binary("sub", power, half)
    return write.mul(write.mul(value, _power_of_two(write, half)), _power_of_two(write, rest))


def _with_large(write: LaneWriter, size: Value, small: Value) -> Value:
    """exp(size) / 2 where `size` is large: the square of a number that does not overflow before it does."""
    root = exp(write.emit, write.mul(size, write.number(0.5)))
    large = write.mul(write.mul(root, write.number(0.5)), root)
    return write.choose(write.test("ogt", size, write.number(_LARGE)), large, small)


def _with_log_of_double(write: LaneWriter, size: Value, small: Value) -> Value:
    """log(2 size) where `size` is huge."""
    large = write.add(log(write.emit, size), write.number(_LN2))
    return write.choose(write.test("ogt", size, write.number(_HUGE)), large, small)


def _log1p(write: LaneWriter, x: Value) -> Value:
    """log(1 + x) for what is not negative."""
    one = write.number(1.0)
    near = write.add(one, x)
    lost = write.choose(
        write.test("olt", x, one), write.sub(x, write.sub(near, one)), write.sub(one, write.sub(near, x))
    )
    return _log(write, near, write.div(lost, near))


def _parts(write: LaneWriter, x: Value) -> Pair:
    """(k, m) with x = 2**k m and sqrt(1/2) <= m < sqrt(2), of what is positive and finite; k is a float."""
    small = write.test("olt", x, write.number(_LEAST_NORMAL))
    normal = write.choose(small, write.mul(x, write.number(2.0**_LIFT)), x)
    offset = write.binary("sub", write.bits(normal), write.whole(_ROOT_HALF_BITS))
    power = write.binary("ashr", offset, write.whole(_MANTISSA_BITS))
    power = write.choose(small, write.binary("sub", power, write.whole(_LIFT)), power)
    mantissa = write.binary("and", offset, write.whole(_MANTISSA_MASK))
    return write.to_float(power), write.from_bits(write.binary("add", mantissa, write.whole(_ROOT_HALF_BITS)))


def _log(write: LaneWriter, x: Value, more: Value) -> Value:
    """k ln 2 + log(1 + f) + more with x = 2**k (1 + f), by s = f / (2 + f), whose odd powers it is a series of."""
    count, reduced = _parts(write, x)
    rest = write.sub(reduced, write.number(1.0))
    ratio = write.div(rest, write.add(rest, write.number(2.0)))
    square = write.mul(ratio, ratio)
    half = write.mul(write.mul(rest, rest), write.number(0.5))
    curve = write.fma(square, write.polynomial(square, _LOG), half)
    tail = write.fma(ratio, curve, write.fma(count, write.number(_LN2_REST), more))
    return write.fma(count, write.number(_LN2), write.sub(rest, write.sub(half, tail)))


def _log2(write: LaneWriter, size: Value) -> Pair:
    """log2 of what is not negative, as k + 2 atanh(s) / ln 2 with s = (m - 1) / (m + 1) and size = 2**k m."""
    one = write.number(1.0)
    count, reduced = _parts(write, size)
    above, (below, below_rest) = write.sub(reduced, one), total(write, reduced, one)
    wide, wide_rest = total(write, one, reduced)
    larger = write.test("ogt", reduced, one)
    below, below_rest = write.choose(larger, below, wide), write.choose(larger, below_rest, wide_rest)
    ratio = write.div(above, below)
    left = write.fma(write.negative(ratio), below, above)
    ratio_rest = write.div(write.fma(write.negative(ratio), below_rest, left), below)
    first, first_rest = product(write, ratio, write.number(_TWO_LOG2_E))
    first_rest = write.fma(ratio_rest, write.number(_TWO_LOG2_E), first_rest)
    first_rest = write.fma(ratio, write.number(_TWO_LOG2_E_REST), first_rest)
    square, square_rest = product(write, ratio, ratio)
    square_rest = write.fma(write.add(ratio, ratio), ratio_rest, square_rest)
    cube, cube_rest = product(write, square, ratio)
    cube_rest = write.fma(square, ratio_rest, write.fma(square_rest, ratio, cube_rest))
    second, second_rest = product(write, cube, write.number(_CUBIC))
    second_rest = write.fma(cube_rest, write.number(_CUBIC), second_rest)
    second_rest = write.fma(cube, write.number(_CUBIC_REST), second_rest)
    tail = write.mul(write.mul(cube, square), write.polynomial(square, _LOG2_TAIL))
    fraction, fraction_rest = total(write, first, second)
    rest = write.add(fraction_rest, write.add(write.add(first_rest, second_rest), tail))
    high, high_rest = total(write, count, fraction)
    bare = write.test("oeq", count, write.number(0.0))  # the sum above wants the larger one first
    high, high_rest = write.choose(bare, fraction, high), write.choose(bare, write.number(0.0), high_rest)
    high, low = total(write, high, write.add(high_rest, rest))
    for value, found in ((0.0, -math.inf), (math.inf, math.inf)):
        there = write.test("oeq", size, write.number(value))
        high = write.choose(there, write.number(found), high)
        low = write.choose(there, write.number(0.0), low)
    unknown = write.test("uno", size, size)
    return write.choose(unknown, size, high), low
