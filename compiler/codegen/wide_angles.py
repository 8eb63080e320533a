"""In: float64 scalars. Out: the instructions of functions of an angle, and of their inverses, at most 3 ulp off.

Always: straight-line code; NaN in, NaN out. Angles of any size are reduced exactly: they are multiplied by as many bits
of 2 / pi as count, by whole numbers.

The coefficients are those of the polynomials that meet the function at Chebyshev's points.
"""

import math
from itertools import pairwise

from compiler.codegen.lane_writer import LaneWriter
from compiler.codegen.values import Emit, Value
from compiler.codegen.wide_math import Pair, product, total

_WORD = 64
_MANTISSA_BITS = 52
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
_ONE_BITS = 1023 << _MANTISSA_BITS
_FIRST = 1022
"""The biased exponent of 1/2, the least that is reduced."""
_START = 1013
"""The biased exponent of a number of whose product the first bit of `TURNS` counts."""
TURNS = (
    0x0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)
"""A word of zeros, and the bits of 2 / pi: who writes the module puts them there as `@own.turns`."""

_QUARTER, _QUARTER_REST = 0.7853981633974483, 3.061616997868383e-17
_HALF, _HALF_REST = 1.5707963267948966, 6.123233995736766e-17
"""pi / 4 and pi / 2."""
_SIN = (
    -0.16666666666666666,
    0.008333333333333331,
    -0.00019841269841265017,
    2.755731921930192e-06,
    -2.5052106219521895e-08,
    1.6058529572267877e-10,
    -7.586576588171073e-13,
)
"""(sin(r) - r) / r**3 in powers of r**2 for |r| <= pi / 4."""
_COS = (
    0.041666666666666664,
    -0.0013888888888888887,
    2.4801587301584618e-05,
    -2.7557319221382114e-07,
    2.087675578389404e-09,
    -1.1470459749675607e-11,
    4.745804889760674e-14,
)
"""(cos(r) - 1 + r**2 / 2) / r**4 in powers of r**2 for |r| <= pi / 4."""
_EIGHTH_TANGENT, _EIGHTHS_TANGENT = 0.41421356237309503, 2.414213562373095
"""The tangents of pi / 8 and 3 pi / 8."""
_ATAN = (
    -0.3333333333333333,
    0.199999999999998,
    -0.14285714285659326,
    0.11111111105106705,
    -0.09090908751076636,
    0.0769229630497447,
    -0.06666423628069258,
    0.058789145444006215,
    -0.052303478730160745,
    0.04551108126325172,
    -0.034558092551413795,
    0.01627194475162406,
)
"""(atan(t) - t) / t**3 in powers of t**2 for |t| <= tan(pi / 8)."""
_ASIN = (
    0.16666666666666666,
    0.07500000000000118,
    0.044642857142551895,
    0.03038194447553234,
    0.02237215744350722,
    0.017352816540325496,
    0.01396378001220357,
    0.011566459612121669,
    0.009621842970100282,
    0.009319560794767446,
    0.0030448799094556773,
    0.019554513336123378,
    -0.01924167174674304,
    0.02961201126495512,
)
"""(asin(t) - t) / t**3 in powers of t**2 for |t| <= 1/2."""


def sin(emit: Emit, x: Value) -> Value:
    """The sine or cosine of what is left of x, by its quadrant."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    quadrant, sine, cosine = _reduced(write, x)
    return _known(write, x, write.mul(_chosen(write, quadrant, sine, cosine), write.with_sign(write.number(1.0), x)))


def cos(emit: Emit, x: Value) -> Value:
    """As the sine, one quadrant on."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    quadrant, sine, cosine = _reduced(write, x)
    return _known(write, x, _chosen(write, write.binary("add", quadrant, write.whole(1)), sine, cosine))


def tan(emit: Emit, x: Value) -> Value:
    """The sine by the cosine."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    quadrant, sine, cosine = _reduced(write, x)
    odd = _has(write, quadrant, 1)
    above = write.choose(odd, write.negative(cosine), sine)
    found = write.div(above, write.choose(odd, sine, cosine))
    return _known(write, x, write.mul(found, write.with_sign(write.number(1.0), x)))


def atan(emit: Emit, x: Value) -> Value:
    """atan(t), pi / 4 + atan((x - 1) / (x + 1)) or pi / 2 - atan(1 / x)."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    size, one = write.magnitude(x), write.number(1.0)
    middle = write.test("ogt", size, write.number(_EIGHTH_TANGENT))
    high = write.test("ogt", size, write.number(_EIGHTHS_TANGENT))
    rest = write.choose(middle, write.div(write.sub(size, one), write.add(size, one)), size)
    rest = write.choose(high, write.div(write.number(-1.0), size), rest)
    base, base_rest = (
        write.choose(high, write.number(half), write.choose(middle, write.number(quarter), write.number(0.0)))
        for half, quarter in ((_HALF, _QUARTER), (_HALF_REST, _QUARTER_REST))
    )
    found = write.add(base, write.add(rest, write.add(_bent(write, rest, _ATAN), base_rest)))
    return write.with_sign(found, x)


def asin(emit: Emit, x: Value) -> Value:
    """A series, or pi / 2 - 2 asin(sqrt((1 - |x|) / 2)); NaN beyond one."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    size, half = write.magnitude(x), write.number(0.5)
    near = write.add(size, _bent(write, size, _ASIN))
    doubled = _double_asin(write, size)
    far = write.sub(write.number(_HALF), write.sub(doubled, write.number(_HALF_REST)))
    return write.with_sign(write.choose(write.test("ole", size, half), near, far), x)


def acos(emit: Emit, x: Value) -> Value:
    """pi / 2 - asin(x), 2 asin(sqrt((1 - x) / 2)), or pi - 2 asin(sqrt((1 + x) / 2)); NaN beyond one."""
    write = LaneWriter(emit, x.lanes, x.dtype)
    size, half = write.magnitude(x), write.number(0.5)
    bent = write.sub(_bent(write, x, _ASIN), write.number(_HALF_REST))
    high, low = total(write, write.number(_HALF), write.negative(x))
    near = write.add(high, write.sub(low, bent))
    doubled = _double_asin(write, size)
    beyond = write.sub(write.number(2 * _HALF), write.sub(doubled, write.number(2 * _HALF_REST)))
    far = write.choose(write.test("olt", x, write.number(0.0)), beyond, doubled)
    return write.choose(write.test("ole", size, half), near, far)


def _bent(write: LaneWriter, rest: Value, coefficients: tuple[float, ...]) -> Value:
    """What an odd function is beside its argument."""
    square = write.mul(rest, rest)
    return write.mul(write.mul(rest, square), write.polynomial(square, coefficients))


def _double_asin(write: LaneWriter, size: Value) -> Value:
    """2 asin(sqrt((1 - size) / 2)): acos(size) for 1/2 <= size <= 1, else NaN or unused."""
    square = write.mul(write.sub(write.number(1.0), size), write.number(0.5))
    root = write.call("sqrt", square)
    lost = write.div(write.fma(write.negative(root), root, square), write.add(root, root))
    lost = write.choose(write.test("oeq", root, write.number(0.0)), root, lost)
    half = write.add(root, write.add(lost, write.mul(write.mul(root, square), write.polynomial(square, _ASIN))))
    return write.add(half, half)


def _known(write: LaneWriter, x: Value, found: Value) -> Value:
    """NaN where there is no angle."""
    finite = write.test("olt", write.magnitude(x), write.number(math.inf))
    return write.choose(finite, found, write.number(math.nan))


def _has(write: LaneWriter, number: Value, bit: int) -> Value:
    return write.test("ne", write.binary("and", number, write.whole(bit)), write.whole(0))


def _chosen(write: LaneWriter, quadrant: Value, sine: Value, cosine: Value) -> Value:
    found = write.choose(_has(write, quadrant, 1), cosine, sine)
    return write.choose(_has(write, quadrant, 2), write.negative(found), found)


def _reduced(write: LaneWriter, x: Value) -> tuple[Value, Value, Value]:
    """The quadrant of |x|, from the nearest multiple of pi / 2, and the sine and cosine of what is left."""
    size = write.magnitude(x)
    small = write.test("ole", size, write.number(_QUARTER))
    turns, left, left_rest = _turned(write, size)
    quadrant = write.choose(small, write.whole(0), turns)
    left = write.choose(small, size, left)
    left_rest = write.choose(small, write.number(0.0), left_rest)
    square = write.mul(left, left)
    half = write.mul(square, write.number(0.5))
    most = write.sub(write.number(1.0), half)
    curve = write.fma(write.mul(left, square), write.polynomial(square, _SIN), write.mul(left_rest, most))
    fourth = write.mul(write.mul(square, square), write.polynomial(square, _COS))
    lost = write.sub(write.sub(write.number(1.0), most), half)
    bend = write.add(lost, write.fma(write.negative(left), left_rest, fourth))
    return quadrant, write.add(left, curve), write.add(most, bend)


def _turned(write: LaneWriter, size: Value) -> tuple[Value, Value, Value]:
    """(quadrants, rest and what the rest lacks) with size = quadrants * pi / 2 + rest, of finite numbers from 1/2 on:
    the product of the mantissa with those 192 bits of 2 / pi that count in it, without multiples of four.
    """
    bits = write.bits(size)
    exponent = write.binary("lshr", bits, write.whole(_MANTISSA_BITS))
    least = write.test("slt", exponent, write.whole(_FIRST))
    exponent = write.choose(least, write.whole(_FIRST), exponent)
    mantissa = write.binary("and", bits, write.whole(_MANTISSA_MASK))
    mantissa = write.binary("or", mantissa, write.whole(1 << _MANTISSA_BITS))
    start = write.binary("sub", exponent, write.whole(_START))
    place = write.binary("lshr", start, write.whole(6))
    words = [_word(write, write.binary("add", place, write.whole(number))) for number in range(4)]
    high, middle, low = (write.call("fshl", one, next_, start) for one, next_ in pairwise(words))
    last = write.binary("mul", mantissa, low)
    carried = _high_product(write, mantissa, low)
    second = write.binary("add", write.binary("mul", mantissa, middle), carried)
    over = write.choose(write.test("ult", second, carried), write.whole(1), write.whole(0))
    first = write.binary("add", write.binary("mul", mantissa, high), _high_product(write, mantissa, middle))
    first = write.binary("add", first, over)
    two = write.whole(2)
    fraction, more = write.call("fshl", first, second, two), write.call("fshl", second, last, two)
    # From one half on the next quadrant is nearer, and what is left is negative.
    sign = write.binary("ashr", fraction, write.whole(_WORD - 1))
    quadrant = write.binary("sub", write.binary("lshr", first, write.whole(_WORD - 2)), sign)
    fraction, more = write.binary("xor", fraction, sign), write.binary("xor", more, sign)
    rest, rest_rest = _as_angle(write, fraction, more)
    negative = write.test("slt", sign, write.whole(0))
    rest, rest_rest = (write.choose(negative, write.negative(one), one) for one in (rest, rest_rest))
    return quadrant, rest, rest_rest


def _as_angle(write: LaneWriter, fraction: Value, more: Value) -> Pair:
    """pi / 2 times a fraction of 128 bits, of which few of the first are zeros."""
    zeros = write.emit(f"call i64 @llvm.ctlz.i64({fraction.typed}, i1 false)", 1, fraction.dtype)
    upper = write.call("fshl", fraction, more, zeros)
    lower = write.call("fshl", more, write.whole(0), zeros)
    eleven = write.whole(_WORD - _MANTISSA_BITS - 1)
    most = write.to_float(write.binary("lshr", upper, eleven))
    below = write.call("fshl", upper, lower, write.whole(_MANTISSA_BITS + 1))
    below = write.to_float(write.binary("lshr", below, write.whole(1)))
    high = write.mul(most, write.number(2.0 ** -(_MANTISSA_BITS + 1)))
    low = write.mul(below, write.number(2.0 ** -(_WORD + _MANTISSA_BITS)))
    angle, rest = product(write, high, write.number(_HALF))
    rest = write.add(rest, write.fma(high, write.number(_HALF_REST), write.mul(low, write.number(_HALF))))
    angle, rest = total(write, angle, rest)
    exponent = write.binary("shl", zeros, write.whole(_MANTISSA_BITS))
    scale = write.from_bits(write.binary("sub", write.whole(_ONE_BITS), exponent))
    return write.mul(angle, scale), write.mul(rest, scale)


def _word(write: LaneWriter, place: Value) -> Value:
    """A word of `TURNS`."""
    pointer = write.emit(f"getelementptr inbounds i64, ptr addrspace(1) @own.turns, {place.typed}", 1, place.dtype)
    return write.emit(f"load i64, ptr addrspace(1) {pointer.text}, align 8", 1, place.dtype)


def _high_product(write: LaneWriter, one: Value, other: Value) -> Value:
    """The upper half of the product of two words without signs."""
    wide = [write.emit(f"zext {value.typed} to i128", 1, value.dtype).text for value in (one, other)]
    whole = write.emit(f"mul i128 {wide[0]}, {wide[1]}", 1, one.dtype).text
    upper = write.emit(f"lshr i128 {whole}, {_WORD}", 1, one.dtype).text
    return write.emit(f"trunc i128 {upper} to i64", 1, one.dtype)
