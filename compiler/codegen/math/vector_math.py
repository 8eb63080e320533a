"""Vectorized float32 math functions with an error of at most 4 ulp.

The code has no calls, branches or memory tables. NaN in, NaN out. Results round to infinity, 0 and 1 where the exact
values do. An ulp is the distance of the two float32 that enclose the exact value. Subnormal arguments and results are
exact like others (the CPU's flushing modes are off in the kernels' threads), except that `exp` is 0 where its exact
value is subnormal: Intel's CPUs take over 100 cycles for each vector with a subnormal result, and a softmax has many.

The coefficients minimize the largest relative error of the function (Lawson's iteration on least squares), and were
rounded to float32 one after another, each time refitting the remaining coefficients.
"""

import math
from functools import partial

from retune.compiler.codegen.values import Emit, Value
from retune.compiler.codegen.vector_builder import PERMUTE_LANES, VectorBuilder, in_parts

# The layout of IEEE 754 binary32: sign, 8 exponent bits biased by 127, 23 mantissa bits.
_MANTISSA_BITS = 23
_ONE_BITS = 0x3F800000
_MANTISSA_MASK = 0x007FFFFF
_LEAST_NORMAL = 2.0**-126

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147182464599609375
"""ln 2 rounded to float32: the fused product with a small integer loses nothing when it is subtracted."""
_LN2_LOW = -1.9046543235e-9
"""ln 2 - `_LN2_HIGH`, the second part of a Cody-Waite reduction."""
_ROUNDER = 1.5 * 2.0**23
"""Adding it to a small number leaves the nearest integer in the low bits of the sum."""
_ROUNDER_BITS = 0x4B400000

_EXP_LEAST = -87.33654022216797
"""The least float32 whose exp is a normal number."""
_EXP_ABOVE = 89.0
"""exp overflows here."""
_EXPM1 = (0.4999999701976776, 0.1666654646396637, 0.04166743531823158, 0.00836627185344696, 0.0013870694674551487)
"""(expm1(r) - r) / r**2 for |r| <= ln 2 / 2, to 2**-26 of expm1."""

_SIXTEENTHS_ROUNDER = 1.5 * 2.0**19
"""As `_ROUNDER`, for the nearest sixteenth."""
_ROOTS = tuple(2.0 ** (sixteenth / 16) for sixteenth in range(PERMUTE_LANES))
"""2**(j/16), as many as a vector permutation looks up: the remaining argument is at most ln 2 / 32."""
_SMALL_EXPM1 = (0.5, 1.0 / 6.0)
"""(expm1(r) - r) / r**2 for |r| <= ln 2 / 32, to 2**-26 of exp."""

_ROOT_HALF_BITS = 0x3F3504F3
"""The bits of sqrt(1/2), where the reduced argument of log begins."""
_LOG = (
    0.3333333134651184,
    -0.2500081956386566,
    0.2000124156475067,
    -0.166234090924263,
    0.14201579988002777,
    -0.13159610331058502,
    0.12762217223644257,
    -0.07636439055204391,
)
"""(log(1 + f) - f + f**2 / 2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2), to 2**-27 of the logarithm."""

# 1 - tanh(x) is about 2 exp(-2x): below half an ulp of 1, 2**-25, from 13 ln 2 = 9.01 on.
_TANH_ONE = 10.0
"""tanh rounds to 1 from here on."""

# erfc(4) = 1.5e-8 is below half an ulp of 1, 2**-25 = 3.0e-8.
_ERF_ONE = 4.0
"""erf rounds to 1 from here on."""
_ERF = (
    0.12837912142276764,
    -0.37612318992614746,
    0.11280113458633423,
    -0.026709215715527534,
    0.004914906341582537,
    -0.0005619873991236091,
)
"""(erf(x) - x) / x in powers of x**2 for |x| <= 1, to 2**-24 of erf."""
_ERFC_ROOT = (
    0.793580174446106,
    -0.261778861284256,
    -0.040452826768159866,
    0.018668100237846375,
    0.0027685968670994043,
    -0.0015344066778197885,
    0.00014151723007671535,
)
"""The eighth root of 1 - erf(1 + t) for 0 <= t <= 3, to 2**-25 of erf."""


def exp(emit: Emit, x: Value) -> Value:
    """2**n * exp(r) with x = n ln 2 + r."""
    write = VectorBuilder(emit, x.lanes)
    # Beyond the bounds the result is 0 or infinity anyway; within them the power fits the exponent arithmetic below.
    shifted, grown = _reduced_expm1(write, write.at_least(write.at_most(x, _EXP_ABOVE), _EXP_LEAST))
    power = write.binary("sub", write.bits(shifted), write.whole(_ROUNDER_BITS))
    # One factor 2**n would overflow for the largest results; two halves are normal for every n.
    half = write.binary("ashr", power, write.whole(1))
    other_half = write.binary("sub", power, half)
    scaled = write.mul(write.add(grown, write.number(1.0)), _power_of_two(write, half))
    result = write.mul(scaled, _power_of_two(write, other_half))
    return write.choose(write.test("olt", x, write.number(_EXP_LEAST)), write.number(0.0), result)


def exp_by_permute(emit: Emit, x: Value) -> Value:
    """2**floor(n) * 2**(n - floor(n)) * exp(r) with x = n ln 2 + r and n a multiple of 1/16: a register of roots of two
    has the middle factor, and r is so small that three terms do. For targets with `permutes_tables`; two thirds of the
    instructions of `exp`.
    """
    return in_parts(emit, x, PERMUTE_LANES, partial(_sixteen_exps, VectorBuilder(emit, PERMUTE_LANES)))


def _sixteen_exps(write: VectorBuilder, x: Value) -> Value:
    is_normal = write.test("uge", x, write.number(_EXP_LEAST))
    x = write.at_most(x, _EXP_ABOVE)
    shifted = write.fma(x, write.number(_LOG2_E), write.number(_SIXTEENTHS_ROUNDER))
    count = write.sub(shifted, write.number(_SIXTEENTHS_ROUNDER))
    # Cody-Waite reduction: ln 2 in two parts, so that the cancellation in x - n ln 2 costs no bits.
    remainder = write.fma(count, write.number(-_LN2_HIGH), x)
    remainder = write.fma(count, write.number(-_LN2_LOW), remainder)
    grown = write.fma(write.mul(remainder, remainder), write.polynomial(remainder, _SMALL_EXPM1), remainder)
    # The low four bits of the shifted sum are the sixteenths, which number the root; `scalef` takes the floor of the
    # remainder.
    root = write.look_up(_ROOTS, write.bits(shifted))
    return write.scale_by_floor(write.fma(root, grown, root), count, is_normal)


def _reduced_expm1(write: VectorBuilder, x: Value) -> tuple[Value, Value]:
    """(the nearest n to x / ln 2 in the low bits of a float, expm1(x - n ln 2)) for |x| < 2**20."""
    shifted = write.fma(x, write.number(_LOG2_E), write.number(_ROUNDER))
    # The float addition rounded to the nearest integer; subtracting the constant again leaves that integer as a float.
    count = write.sub(shifted, write.number(_ROUNDER))
    remainder = write.fma(count, write.number(-_LN2_HIGH), x)
    remainder = write.fma(count, write.number(-_LN2_LOW), remainder)
    square = write.mul(remainder, remainder)
    return shifted, write.fma(square, write.polynomial(remainder, _EXPM1), remainder)


def _power_of_two(write: VectorBuilder, power: Value) -> Value:
    """2**power for powers -126 .. 127, of an integer whose higher bits are shifted out."""
    exponent = write.binary("shl", power, write.whole(_MANTISSA_BITS))
    return write.from_bits(write.binary("add", exponent, write.whole(_ONE_BITS)))


def log(emit: Emit, x: Value) -> Value:
    """k ln 2 + log(1 + f) with x = 2**k (1 + f); a subnormal x is scaled up first."""
    write = VectorBuilder(emit, x.lanes)
    small = write.test("olt", x, write.number(_LEAST_NORMAL))
    normal = write.choose(small, write.mul(x, write.number(2.0**_MANTISSA_BITS)), x)
    # Counted from sqrt(1/2) and not from 1, the exponent rounds up in the upper half of a binade, so that |f| stays
    # below 0.42.
    offset = write.binary("sub", write.bits(normal), write.whole(_ROOT_HALF_BITS))
    power = write.binary("ashr", offset, write.whole(_MANTISSA_BITS))
    power = write.choose(small, write.binary("sub", power, write.whole(_MANTISSA_BITS)), power)
    mantissa = write.binary("and", offset, write.whole(_MANTISSA_MASK))
    reduced = write.from_bits(write.binary("add", mantissa, write.whole(_ROOT_HALF_BITS)))
    count = write.to_float(power)
    fraction = write.sub(reduced, write.number(1.0))
    curve = write.fma(fraction, write.polynomial(fraction, _LOG), write.number(-0.5))
    # Small terms are added first: only the last addition, of k ln 2, rounds at the size of the result.
    tail = write.fma(write.mul(fraction, fraction), curve, write.mul(count, write.number(_LN2_LOW)))
    result = write.fma(count, write.number(_LN2_HIGH), write.add(fraction, tail))
    # Special cases last: infinity and NaN pass through, a negative number gives NaN, zero minus infinity.
    result = write.choose(write.test("olt", x, write.number(math.inf)), result, x)
    result = write.choose(write.test("olt", x, write.number(0.0)), write.number(math.nan), result)
    return write.choose(write.test("oeq", x, write.number(0.0)), write.number(-math.inf), result)


def tanh(emit: Emit, x: Value) -> Value:
    """m / (m + 2) with m = expm1(2 |x|), and the sign of x."""
    write = VectorBuilder(emit, x.lanes)
    size = write.at_most(write.magnitude(x), _TANH_ONE)
    shifted, grown = _reduced_expm1(write, write.add(size, size))
    # n is at most 20 / ln 2, below 30, so that unlike in `exp` a single factor is a normal number.
    scale = _power_of_two(write, write.bits(shifted))
    # expm1(2|x|) = 2**n expm1(r) + (2**n - 1): for small x there is no cancellation, which exp(2x) - 1 would suffer.
    expm1 = write.fma(scale, grown, write.sub(scale, write.number(1.0)))
    return write.with_sign(write.div(expm1, write.add(expm1, write.number(2.0))), x)


def erf(emit: Emit, x: Value) -> Value:
    """An odd polynomial for |x| < 1, else 1 - p**8 with a polynomial p in |x| - 1, and the sign of x."""
    write = VectorBuilder(emit, x.lanes)
    size = write.at_most(write.magnitude(x), _ERF_ONE)
    inner = write.fma(write.polynomial(write.mul(size, size), _ERF), size, size)
    root = write.polynomial(write.sub(size, write.number(1.0)), _ERFC_ROOT)
    # erfc falls like exp(-x**2): its eighth root is smooth enough for degree 6, three squarings restore it.
    fourth = write.mul(write.mul(root, root), write.mul(root, root))
    outer = write.sub(write.number(1.0), write.mul(fourth, fourth))
    # Both forms are computed: without branches that is cheaper than separating the lanes.
    chosen = write.choose(write.test("olt", size, write.number(1.0)), inner, outer)
    return write.with_sign(chosen, x)
