"""The language of tensor expressions: `placeholder`, `compute`, reductions and index variables.

It knows nothing of schedules.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from retune.compiler.core.dtype import finite_limit, is_float, item_bits, item_bytes
from retune.compiler.core.errors import DefinitionError, refuse_depth
from retune.compiler.ir import expr as ir
from retune.compiler.ir.expr import BinaryOp, Expr, Operand
from retune.compiler.ir.visit import walk
from retune.compiler.te.checks import (
    check_reads,
    checked_attributes,
    checked_dtype,
    checked_name,
    checked_shape,
    integer,
    real,
    truth,
    with_tag,
)
from retune.compiler.te.reduction import Axis, AxisKind, Reduce, ReducedValue, as_body, values_of
from retune.compiler.te.tensor import ComputeOp, PlaceholderOp, Tensor, TensorRead, results_of


def placeholder(shape: Sequence[int], dtype: str = "float32", name: str = "placeholder") -> Tensor:
    """An input tensor of `shape`.

    Raises: DefinitionError for a shape, an element type or a name that makes no tensor.
    """
    name, dtype = checked_name("a tensor", name), checked_dtype(name, dtype)
    return Tensor(PlaceholderOp(name, checked_shape(name, shape, dtype), dtype))


def reduce_axis(extent: int | tuple[int, int], name: str = "k") -> Axis:
    """An axis to reduce over, 0 .. extent-1; `(0, extent)` is the same."""
    # TVM writes an axis as a range that starts at 0.
    shape: tuple[Any, ...] = extent[1:] if isinstance(extent, tuple) and extent[:1] == (0,) else (extent,)
    if "." in checked_name("an axis", name) or "@" in name:
        raise DefinitionError(f"the axis name {name!r} holds '.' or '@', which loops made from axes are named with")
    return Axis(name, checked_shape(name, shape)[0], AxisKind.REDUCE)


@overload
def compute(
    shape: Sequence[int],
    fcompute: Callable[..., Operand],
    name: str = "compute",
    attrs: Mapping[str, object] | None = None,
    *,
    tag: str = "",
    varargs_names: Sequence[str] | None = None,
) -> Tensor: ...
@overload
def compute(
    shape: Sequence[int],
    fcompute: Callable[..., tuple[Operand, ...]],
    name: str = "compute",
    attrs: Mapping[str, object] | None = None,
    *,
    tag: str = "",
    varargs_names: Sequence[str] | None = None,
) -> tuple[Tensor, ...]: ...
def compute(
    shape: Sequence[int],
    fcompute: Callable[..., Operand | tuple[Operand, ...]],
    name: str = "compute",
    attrs: Mapping[str, object] | None = None,
    *,
    tag: str = "",
    varargs_names: Sequence[str] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """A tensor whose element at (i, j, …) is `fcompute(i, j, …)`.

    A function that returns a tuple makes as many tensors, computed together by one operation; their types may differ.
    Axes are named as the function's parameters are; a `*args` function gets `varargs_names`, or i0, i1, … `tag` becomes
    an attribute.
    Raises: DefinitionError when names repeat, a reduction is nested, a reduce axis is used outside a reduction, or a
    tensor is certainly read outside of its shape.
    """
    extents = checked_shape(checked_name("a tensor", name), shape)
    names = _axis_names(fcompute, len(extents), varargs_names)
    axes = tuple(Axis(axis, extent, AxisKind.SPATIAL) for axis, extent in zip(names, extents, strict=True))
    value = fcompute(*axes)
    # Too deep a body would exhaust the stack of every later walk: refuse it here, by its name.
    with refuse_depth(name, DefinitionError):
        results = _make_tensors(name, axes, value, with_tag(attrs, tag))
    return results if isinstance(value, tuple) else results[0]


def _make_tensors(
    name: str, axes: tuple[Axis, ...], value: Operand | tuple[Operand, ...], attrs: object
) -> tuple[Tensor, ...]:
    """The tensors of a checked body."""
    body = _join(name, value) if isinstance(value, tuple) else ir.as_expr(value)
    reduce_axes = body.axes if isinstance(body, Reduce) else ()
    names = [axis.name for axis in (*axes, *reduce_axes)]
    if len(set(names)) != len(names):
        raise DefinitionError(f"{name}: axis names must differ, got {', '.join(names)}")
    for node in walk(body):
        if isinstance(node, Reduce) and node is not body:
            raise DefinitionError(f"{name}: a reduction must be the whole body; compute it as its own tensor")
        if isinstance(node, ReducedValue):
            raise DefinitionError(f"{name}: the values of {node.reduction} belong together; return all of them")
        if isinstance(node, Axis) and node not in axes and node not in reduce_axes:
            raise DefinitionError(f"{name}: the body uses the axis {node}, which is none of its own")
        if isinstance(node, TensorRead) and node.tensor.is_checked and len(node.indices) < node.tensor.ndim:
            read, rank = node.tensor.name, node.tensor.ndim
            raise DefinitionError(f"{read} has {rank} dimensions but is read with {len(node.indices)} indices")
    check_reads(name, body)
    return results_of(ComputeOp(name, axes, body, checked_attributes(name, attrs)))


def _join(name: str, values: tuple[Operand, ...]) -> Expr:
    """Several values as one body; all values of a reduction, in order, are that reduction."""
    if not values:
        raise DefinitionError(f"{name}: the body has no values; return at least one")
    items = tuple(map(ir.as_expr, values))
    first = items[0]
    if isinstance(first, ReducedValue):
        all_values = tuple(
            ReducedValue(first.reduction, index) for index in range(len(values_of(first.reduction.source)))
        )
        if items == all_values:
            return first.reduction
    return as_body(items)


def _axis_names(function: Callable[..., object], count: int, of_varargs: Sequence[str] | None = None) -> list[str]:
    names: list[str] = []
    if not callable(function):
        raise DefinitionError(f"the body {function!r} is no function of the indices")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(of_varargs or (f"i{index}" for index in range(len(names), count)))
        # Parameters with defaults bind values of a surrounding loop, as Python closures do; they are no axes.
        elif parameter.default is inspect.Parameter.empty:
            names.append(parameter.name)
    if len(names) != count:
        raise DefinitionError(f"the function takes {len(names)} indices but the shape has {count} dimensions")
    return names


def cast(dtype: str, value: Operand) -> Expr:
    """`value` converted to the element type `dtype`; a sum or product of floats is converted once it is complete."""
    dtype = checked_dtype("cast", dtype)
    match value:
        case Reduce("sum" | "prod", source, dtype=own) if own == source.dtype and is_float(own) and is_float(dtype):
            return replace(value, dtype=dtype)
    return ir.cast(dtype, value)


def _unary(name: str, of_integers: bool = False) -> Callable[[Operand], Expr]:
    def call(value: Operand) -> Expr:
        expr = ir.as_expr(value) if of_integers else real(name, value)
        return ir.Call(name, (expr,), expr.dtype)

    call.__doc__ = f"Elementwise {name}."
    return call


exp = _unary("exp")
log = _unary("log")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
tanh = _unary("tanh")
erf = _unary("erf")
sigmoid = _unary("sigmoid")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
asinh = _unary("asinh")
acosh = _unary("acosh")
atanh = _unary("atanh")
exp2 = _unary("exp2")
expm1 = _unary("expm1")
log2 = _unary("log2")
log10 = _unary("log10")
log1p = _unary("log1p")
floor = _unary("floor", of_integers=True)
ceil = _unary("ceil", of_integers=True)
round = _unary("round", of_integers=True)
trunc = _unary("trunc", of_integers=True)
abs = _unary("abs", of_integers=True)
# TVM's name; both round ties to even.
nearbyint = round


def _binary(name: str) -> Callable[[Operand, Operand], Expr]:
    def call(lhs: Operand, rhs: Operand) -> Expr:
        left, right = ir.promote(lhs, rhs)
        return ir.Call(name, (real(name, left), right), left.dtype)

    call.__doc__ = f"Elementwise {name} of two floats."
    return call


atan2 = _binary("atan2")
copysign = _binary("copysign")
fmod = _binary("fmod")
hypot = _binary("hypot")


def _operator(op: BinaryOp, meaning: str) -> Callable[[Operand, Operand], Expr]:
    def call(lhs: Operand, rhs: Operand) -> Expr:
        return ir.binary(op, lhs, rhs)

    call.__doc__ = meaning
    return call


add = _operator(BinaryOp.ADD, "The sum of two values.")
subtract = _operator(BinaryOp.SUB, "The difference of two values.")
multiply = _operator(BinaryOp.MUL, "The product of two values.")
div = _operator(BinaryOp.DIV, "The quotient of two values, of integers rounded towards zero.")
floordiv = _operator(BinaryOp.FLOORDIV, "The quotient of two values, rounded towards minus infinity.")
floormod = _operator(BinaryOp.FLOORMOD, "What `floordiv` leaves; it has the sign of the divisor.")
# TVM's names; indices are not negative, so that any rounding is right.
indexdiv, indexmod, truncdiv = floordiv, floormod, div


def truncmod(lhs: Operand, rhs: Operand) -> Expr:
    """The remainder of `truncdiv`, with the sign of the dividend."""
    left, right = ir.promote(lhs, rhs)
    return fmod(left, right) if ir.is_float(left.dtype) else left - ir.binary(BinaryOp.DIV, left, right) * right


def ceildiv(lhs: Operand, rhs: Operand) -> Expr:
    """The quotient of two integers, rounded towards plus infinity."""
    # The floor of the negated quotient, negated, is its ceiling.
    return -ir.binary(BinaryOp.FLOORDIV, -ir.as_expr(lhs), rhs)


def isnan(value: Operand) -> Expr:
    """Whether the value is not a number; False for integers."""
    expr = ir.widen(ir.as_expr(value))
    return ir.Call("isnan", (expr,), ir.BOOL) if ir.is_float(expr.dtype) else ir.const(False)


def isinf(value: Operand) -> Expr:
    """Whether the value is infinite; False for integers."""
    expr = ir.as_expr(value)
    return ir.binary(BinaryOp.EQ, abs(expr), np.inf) if ir.is_float(expr.dtype) else ir.const(False)


def isfinite(value: Operand) -> Expr:
    """Whether the value is a number and not infinite; True for integers."""
    expr = ir.as_expr(value)
    return ir.binary(BinaryOp.LT, abs(expr), np.inf) if ir.is_float(expr.dtype) else ir.const(True)


def min_value(dtype: str) -> Expr:
    """The least finite value of a type. Raises: DefinitionError for an unknown type."""
    return _limit("min_value", dtype, "min")


def max_value(dtype: str) -> Expr:
    """The greatest finite value of a type. Raises: DefinitionError for an unknown type."""
    return _limit("max_value", dtype, "max")


def _limit(where: str, dtype: str, which: str) -> Expr:
    kind = checked_dtype(where, dtype)
    if kind == ir.BOOL:
        return ir.const(which == "max")
    return ir.const(finite_limit(kind, is_least=which == "min"), kind)


def bits(dtype: str, value: Operand) -> Expr:
    """The value of type `dtype` with the bits of `value`. A byte read as a bool is 0 or 1.

    Raises: DefinitionError when the types differ in size.
    """
    expr, dtype = ir.as_expr(value), checked_dtype("bits", dtype)
    if item_bits(dtype) != item_bits(expr.dtype):
        raise DefinitionError(f"bits: {expr.dtype} has {item_bits(expr.dtype)} bits, {dtype} {item_bits(dtype)}")
    return expr if expr.dtype == dtype else ir.Call("bits", (expr,), dtype)


def popcount(value: Operand) -> Expr:
    """The number of 1 bits of an integer, in its type; two's complement if negative.

    Raises: DefinitionError for a value that is no integer.
    """
    expr = integer("popcount", value)
    return ir.Call("popcount", (expr,), expr.dtype)


def clz(value: Operand) -> Expr:
    """The number of 0 bits of an integer before the first 1, as int32; all of them for 0.

    Raises: DefinitionError for a value that is no integer.
    """
    return ir.Call("clz", (integer("clz", value),), "int32")


def nextafter(lhs: Operand, rhs: Operand) -> Expr:
    """The float after `lhs` in the direction of `rhs`, of their type; `rhs` where they are equal."""
    left, right = ir.promote(lhs, rhs)
    dtype = real("nextafter", left).dtype
    # Floats of the same sign are ordered as their bits are, so the next away from zero has the next higher bits.
    kind = f"int{8 * item_bytes(dtype)}"
    left_bits = bits(kind, left)
    outward = equal(left < right, left > 0)
    step = if_then_else(outward, ir.const(1, kind), ir.const(-1, kind))
    sign = ir.binary(BinaryOp.BIT_AND, bits(kind, right), ir.const(int(np.iinfo(kind).min), kind))
    # After zero comes the least subnormal number, with the sign of the other operand.
    moved = if_then_else(equal(left, 0.0), sign + ir.const(1, kind), left_bits + step)
    ends = if_then_else(equal(left, right), right, bits(dtype, moved))
    # The sum with a NaN is a NaN.
    return if_then_else(logical_or(isnan(left), isnan(right)), left + right, ends)


def pow(base: Operand, exponent: Operand) -> Expr:
    """`base` to the power `exponent`, of floats; a square is a product, of integers too."""
    # A product is rounded correctly, and cheaper than a power.
    if isinstance(base, Expr) and not isinstance(exponent, Expr) and exponent == 2:
        return base * base
    left, right = ir.promote(base, exponent)
    return ir.Call("pow", (real("pow", left), right), left.dtype)


power = pow


def exp10(value: Operand) -> Expr:
    """10 to the power `value`, a float."""
    return pow(ir.const(10.0, real("exp10", value).dtype), value)


def logaddexp(lhs: Operand, rhs: Operand) -> Expr:
    """log(exp(lhs) + exp(rhs)) of floats, without overflow."""
    left, right = ir.promote(lhs, rhs)
    above = maximum(real("logaddexp", left), right)
    # The exponent is never positive, so nothing overflows, and log1p keeps terms that are small relative to 1.
    correction = log1p(exp(-abs(left - right)))
    # Of two equal infinities the difference would be a NaN.
    return if_then_else(equal(left, right), above + ir.const(np.log(2.0), left.dtype), above + correction)


def maximum(lhs: Operand, rhs: Operand) -> Expr:
    """The larger of two values; a NaN if either is a NaN."""
    return ir.binary(BinaryOp.MAX, lhs, rhs)


def minimum(lhs: Operand, rhs: Operand) -> Expr:
    """The smaller of two values; a NaN if either is a NaN."""
    return ir.binary(BinaryOp.MIN, lhs, rhs)


def equal(lhs: Operand, rhs: Operand) -> Expr:
    """Whether two values are equal."""
    return ir.binary(BinaryOp.EQ, lhs, rhs)


def not_equal(lhs: Operand, rhs: Operand) -> Expr:
    """Whether two values differ."""
    return ir.binary(BinaryOp.NE, lhs, rhs)


def logical_and(*conditions: Operand) -> Expr:
    """Whether all conditions hold."""
    result: Expr = ir.const(True)
    for condition in conditions:
        result = ir.binary(BinaryOp.AND, result, truth("logical_and", condition))
    return result


def logical_or(*conditions: Operand) -> Expr:
    """Whether any condition holds."""
    result: Expr = ir.const(False)
    for condition in conditions:
        result = ir.binary(BinaryOp.OR, result, truth("logical_or", condition))
    return result


def logical_not(condition: Operand) -> Expr:
    """Whether the condition does not hold."""
    return ir.Not(truth("logical_not", condition))


def if_then_else(condition: Operand, then: Operand, otherwise: Operand) -> Expr:
    """`then` where `condition` holds, else `otherwise`; the other side is not evaluated, so its reads are free."""
    return ir.select(truth("if_then_else", condition), then, otherwise)
