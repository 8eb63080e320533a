"""Element-wise operators: result element i needs operand element i only, after broadcasting."""

import math
from collections.abc import Callable, Sequence
from typing import cast as as_type

import numpy as np

from retune.compiler import te
from retune.compiler.core.dtype import HALVES, finite_limit, is_float, is_unsigned, item_bits
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.numeric import convert
from retune.compiler.ops.op import (
    Array,
    FusionKind,
    Lowered,
    Op,
    OpCall,
    Operand,
    Shape,
    broadcast_shapes,
    element,
    widen,
)
from retune.compiler.te.tensor import Tensor


def _pointwise(call: OpCall, shape: Shape, dtype: str, scalar: Callable[..., Expr]) -> Lowered:
    """A result of `shape` and `dtype` whose elements are `scalar` of the operands' elements."""

    def build(*operands: Operand) -> Tensor:
        return te.compute(
            shape, lambda *i: scalar(*(element(operand, i, shape) for operand in operands)), name=call.name
        )

    return Lowered(shape, dtype, build)


def _broadcast(call: OpCall) -> Shape:
    """The common shape of the last two operands, which must have one dtype."""
    first, second = call.types[-2:]
    call.require(first.dtype == second.dtype, "the operands have different dtypes")
    shape = broadcast_shapes(first.shape, second.shape)
    if shape is None:
        raise call.misfit("the shapes do not broadcast")
    return shape


def _unary(name: str, scalar: Callable[[Expr], Expr], numpy: Callable[[Array], Array], *, reads: int = 1) -> Op:
    """An operator that keeps shape and dtype and has no attributes."""

    def lower(call: OpCall) -> Lowered:
        return _pointwise(call, call.types[0].shape, call.types[0].dtype, scalar)

    return Op(name, 1, FusionKind.ELEMENTWISE, lower, lambda _, arrays: numpy(arrays[0]), reads=reads)


def _activation(name: str, scalar: Callable[[Expr], Expr], numpy: Callable[[Array], Array], reads: int = 2) -> Op:
    """A unary operator of several steps, which halves compute in float32 and round once."""

    def rounded_once(x: Expr) -> Expr:
        return te.cast(x.dtype, scalar(te.cast("float32", x))) if x.dtype in HALVES else scalar(x)

    return _unary(name, rounded_once, lambda x: numpy(widen(x)), reads=reads)


def _binary(
    name: str,
    scalar: Callable[[Expr, Expr], Expr],
    numpy: Callable[[Array, Array], Array],
    *,
    dtype: str = "",
    reads: int = 1,
    commutative: bool = False,
) -> Op:
    """An operator of two operands of one dtype; `dtype` is the result's where that is another."""

    def lower(call: OpCall) -> Lowered:
        return _pointwise(call, _broadcast(call), dtype or call.types[0].dtype, scalar)

    def evaluate(_: OpCall, arrays: Sequence[Array]) -> Array:
        return numpy(arrays[0], arrays[1])

    return Op(name, 2, FusionKind.BROADCAST, lower, evaluate, reads=reads, commutative=commutative)


def _rounded_product(a: Expr, b: Expr) -> Expr:
    # Through its bits: code generation fuses a plain product with a sum, on the machines that have an instruction.
    return te.bits(a.dtype, te.bits(f"int{item_bits(a.dtype)}", a * b))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    # NumPy has no error function.
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


def _gelu(x: Expr) -> Expr:
    return x * 0.5 * (te.erf(x * math.sqrt(0.5)) + 1.0)


def _gelu_tanh(x: Expr) -> Expr:
    # Hendrycks and Gimpel's approximation; sqrt(2 / pi) is multiplied into the polynomial beforehand.
    return x * 0.5 * (te.tanh(x * (x * x * (0.044715 * math.sqrt(2 / math.pi)) + math.sqrt(2 / math.pi))) + 1.0)


def _gelu_tanh_array(x: Array) -> Array:
    return np.asarray(x * (np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)) + 1) / 2)


def _softplus(x: Expr) -> Expr:
    power = te.exp(-te.abs(x))  # at most 1, so that nothing overflows
    above = power + 1
    # The sum rounds `power`; `power - (above - 1)` is that error exactly (Sterbenz), and the logarithm's derivative is
    # 1 / above, to the few digits that matter 1 - power / 2.
    return te.maximum(x, 0) + (te.log(above) + (power - (above - 1)) * (1 - power * 0.5))


def _hard_swish(x: Expr) -> Expr:
    # x * relu6(x + 3) / 6 with the division folded into a multiply-add.
    return x * te.minimum(te.maximum(x * (1 / 6) + 0.5, 0.0), 1.0)


def _invert_bits(x: Expr) -> Expr:
    if x.dtype == "bool":
        return te.logical_not(x)
    # No node inverts bits: an exclusive or with all ones does.
    return x ^ te.const(int(np.iinfo(x.dtype).max) if x.dtype.startswith("u") else -1, x.dtype)


def _remainder(a: Expr, b: Expr) -> Expr:
    """What is left of `a` with the sign of `a`."""
    if not is_float(a.dtype):
        # Integers divide towards zero, so that the rest has the sign of `a`.
        return a - a / b * b
    # Of the magnitudes, since `%` has the sign of the divisor.
    rest = te.abs(a) % te.abs(b)
    return te.select(a < 0, -rest, rest)


def _divide(a: Array, b: Array) -> Array:
    if is_float(a.dtype.name):
        return np.asarray(a / b)
    # The quotient of the magnitudes, since `//` of signed integers rounds down.
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) ^ (b < 0), -quotient, quotient))


_LEAST_SLOPE = 2.0**-14
"""The smallest normal float16: a slope that rounds to 0 makes a NaN of infinity."""


def _leaky_relu(call: OpCall) -> Lowered:
    """x, or alpha * x below 0."""
    (x,) = call.types
    alpha = call.number("alpha")
    if _LEAST_SLOPE <= alpha <= 1:
        # Without a choice it is inlined wherever it is read.
        return _pointwise(call, x.shape, x.dtype, lambda e: te.maximum(e, e * alpha))
    return _pointwise(call, x.shape, x.dtype, lambda e: te.select(te.const(0, e.dtype) < e, e, e * alpha))


def _leaky_relu_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    return np.where(x < 0, x * x.dtype.type(call.number("alpha")), x)


def _clip(call: OpCall) -> Lowered:
    """min(max(x, low), high). Infinite bounds bound nothing; bounds of an integer are whole."""
    (x,) = call.types
    low, high = call.number("low"), call.number("high")
    number = float if is_float(x.dtype) else int

    def clip(e: Expr) -> Expr:
        if low > float("-inf"):
            e = te.maximum(e, as_type(float, number(low)))
        if high < float("inf"):
            e = te.minimum(e, as_type(float, number(high)))
        return e

    return _pointwise(call, x.shape, x.dtype, clip)


def _clip_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    return np.minimum(np.maximum(arrays[0], call.number("low")), call.number("high"))


def _cast(call: OpCall) -> Lowered:
    """x in another dtype; floats truncate to ints."""
    dtype = call.text("dtype")
    return _pointwise(call, call.types[0].shape, dtype, lambda e: te.cast(dtype, e))


def _saturate(call: OpCall) -> Lowered:
    """round(x) + zero of (x, zero), clipped to the range of the integers `dtype` of at most 16 bits."""
    dtype, (x, zero) = call.text("dtype"), call.types
    kind = "float32" if x.dtype in HALVES else x.dtype
    whole = f"int{item_bits(kind)}"
    shape = broadcast_shapes(x.shape, zero.shape)
    if shape is None or zero.dtype != "int32":
        raise call.misfit("needs a zero point in int32, of a shape that broadcasts")
    # The sum with this number is rounded to even, and the integer is in its lowest bits.
    magic = 1.5 * 2.0 ** np.finfo(kind).nmant
    least, most = (te.cast("int32", limit(dtype)) for limit in (te.min_value, te.max_value))

    def saturate(number: Expr, shift: Expr) -> Expr:
        number = te.maximum(te.cast(kind, number), te.cast(kind, least - shift))
        number = te.minimum(number, te.cast(kind, most - shift))
        return te.cast(dtype, te.bits(whole, number + magic) + te.cast(whole, shift))

    return _pointwise(call, shape, dtype, saturate)


def _saturate_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    dtype, whole = call.text("dtype"), np.round(widen(arrays[0])) + arrays[1]
    least, most = finite_limit(dtype, is_least=True), finite_limit(dtype, is_least=False)
    return convert(np.clip(whole, least, most), dtype)


def _bits(call: OpCall) -> Lowered:
    """The bits of x as another dtype."""
    (x,) = call.types
    dtype = call.text("dtype")
    call.require(item_bits(x.dtype) == item_bits(dtype), f"elements of {dtype} have another number of bits")
    return _pointwise(call, x.shape, dtype, lambda e: te.bits(dtype, e))


def _is_nan(call: OpCall) -> Lowered:
    """Whether x is not a number."""
    return _pointwise(call, call.types[0].shape, "bool", te.isnan)


def _where(call: OpCall) -> Lowered:
    """b where the condition a holds, else c."""
    condition = call.types[0]
    call.require(condition.dtype == "bool", "the condition must be bool")
    shape = broadcast_shapes(condition.shape, _broadcast(call))
    if shape is None:
        raise call.misfit("the shapes do not broadcast")
    return _pointwise(call, shape, call.types[1].dtype, te.select)


_INVERTED = ("sin", "cos", "tan", "sinh", "cosh", "tanh")
"""Functions whose inverse is an operator."""

_ELEMENTWISE = FusionKind.ELEMENTWISE

OPERATORS = (
    _unary("relu", lambda x: te.maximum(x, 0), lambda x: np.maximum(x, 0)),
    _unary("sigmoid", te.sigmoid, _sigmoid),
    _unary("erf", te.erf, _erf),
    _unary("neg", lambda x: -x, np.negative),
    *(
        _unary(name, getattr(te, name), getattr(np, name))
        for name in (
            *("tanh", "exp", "log", "sqrt", "abs", "floor", "ceil", "round"),
            *("sin", "cos", "tan", "sinh", "cosh"),
        )
    ),
    *(_unary(f"a{name}", getattr(te, f"a{name}"), getattr(np, f"arc{name}")) for name in _INVERTED),
    # The last branch is x itself, so that a NaN stays.
    _unary(
        "sign",
        lambda x: te.if_then_else(x > 0, 1, x if is_unsigned(x.dtype) else te.if_then_else(x < 0, -1, x)),
        np.sign,
        reads=3,
    ),
    _activation("softplus", _softplus, lambda x: np.logaddexp(x, 0), reads=5),
    _activation("silu", lambda x: x * te.sigmoid(x), lambda x: x * _sigmoid(x)),
    _activation("hard_swish", _hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    _activation("gelu", _gelu, lambda x: np.asarray(x * (_erf(np.asarray(x * math.sqrt(0.5))) + 1) / 2)),
    _activation("gelu_tanh", _gelu_tanh, _gelu_tanh_array, reads=4),
    _unary("bit_not", _invert_bits, np.invert),
    # Only where a graph output would be an input, a constant or another output.
    _unary("identity", lambda x: x, np.copy),
    Op("leaky_relu", 1, _ELEMENTWISE, _leaky_relu, _leaky_relu_array, {"alpha": float}, reads=3),
    Op("clip", 1, _ELEMENTWISE, _clip, _clip_array, {"low": float, "high": float}),
    Op("cast", 1, _ELEMENTWISE, _cast, lambda call, arrays: convert(arrays[0], call.text("dtype")), {"dtype": str}),
    Op("bits", 1, _ELEMENTWISE, _bits, lambda call, arrays: arrays[0].copy().view(call.text("dtype")), {"dtype": str}),
    Op("is_nan", 1, _ELEMENTWISE, _is_nan, lambda _, arrays: np.isnan(arrays[0])),
    _binary("add", lambda a, b: a + b, np.add, commutative=True),
    _binary("sub", lambda a, b: a - b, np.subtract),
    _binary("mul", lambda a, b: a * b, np.multiply, commutative=True),
    # Integers truncate towards zero.
    _binary("div", lambda a, b: a / b, _divide),
    # Of floats, rounded before anything is added to it.
    _binary("rounded_mul", _rounded_product, np.multiply),
    # Of floats, never a product with a reciprocal.
    _binary("true_div", lambda a, b: a / b, np.divide),
    _binary("pow", te.pow, np.power),
    _binary("maximum", te.maximum, np.maximum, commutative=True),
    _binary("minimum", te.minimum, np.minimum, commutative=True),
    # The remainder of `mod` has the sign of the divisor, that of `fmod` the sign of the dividend.
    _binary("mod", lambda a, b: a % b, np.mod),
    _binary("fmod", _remainder, np.fmod, reads=3),
    _binary("bit_and", lambda a, b: a & b, np.bitwise_and),
    _binary("bit_or", lambda a, b: a | b, np.bitwise_or),
    _binary("bit_xor", lambda a, b: a ^ b, np.bitwise_xor),
    _binary("shift_left", lambda a, b: a << b, np.left_shift),
    _binary("shift_right", lambda a, b: a >> b, np.right_shift),
    _binary("equal", te.equal, np.equal, dtype="bool"),
    _binary("less", lambda a, b: a < b, np.less, dtype="bool"),
    _binary("less_equal", lambda a, b: a <= b, np.less_equal, dtype="bool"),
    Op("saturate", 2, FusionKind.BROADCAST, _saturate, _saturate_array, {"dtype": str}),
    Op("where", 3, FusionKind.BROADCAST, _where, lambda _, arrays: np.where(*arrays)),
)
