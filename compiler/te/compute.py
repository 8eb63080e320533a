"""In: shapes and Python functions over index variables. Out: tensors.

Always: the language of tensor expressions; nothing here knows about schedules.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.errors import DefinitionError
from compiler.ir import expr as ir
from compiler.ir.expr import BinaryOp, Expr, Operand
from compiler.ir.visit import walk
from compiler.te.checks import (
    check_reads,
    checked_attributes,
    checked_dtype,
    checked_name,
    checked_shape,
    real,
    truth,
)
from compiler.te.tensor import Axis, AxisKind, Combiner, ComputeOp, PlaceholderOp, Reduce, Tensor


def placeholder(shape: Sequence[int], dtype: str = "float32", name: str = "placeholder") -> Tensor:
    """An input tensor of `shape`.

    Raises: DefinitionError for a shape, an element type or a name that makes no tensor.
    """
    name, dtype = checked_name("a tensor", name), checked_dtype(name, dtype)
    return Tensor(PlaceholderOp(name, checked_shape(name, shape, dtype), dtype))


def reduce_axis(extent: int, name: str = "k") -> Axis:
    """An axis to reduce over, 0 .. extent-1."""
    if "." in checked_name("an axis", name) or "@" in name:
        raise DefinitionError(f"the axis name {name!r} holds '.' or '@', which loops made from axes are named with")
    return Axis(name, checked_shape(name, (extent,))[0], AxisKind.REDUCE)


def compute(
    shape: Sequence[int],
    function: Callable[..., Operand],
    name: str = "compute",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """A tensor whose element at (i, j, …) is `function(i, j, …)`.

    Axes are named as the function's parameters are; a `*args` function gets i0, i1, …
    Raises: DefinitionError when names repeat, a reduction is nested, a reduce axis is used outside a reduction, or a
    tensor is certainly read outside of its shape.
    """
    extents = checked_shape(checked_name("a tensor", name), shape)
    axes = tuple(
        Axis(axis, extent, AxisKind.SPATIAL)
        for axis, extent in zip(_axis_names(function, len(extents)), extents, strict=True)
    )
    body = ir.as_expr(function(*axes))
    reduce_axes = body.axes if isinstance(body, Reduce) else ()
    names = [axis.name for axis in (*axes, *reduce_axes)]
    if len(set(names)) != len(names):
        raise DefinitionError(f"{name}: axis names must differ, got {', '.join(names)}")
    for node in walk(body):
        if isinstance(node, Reduce) and node is not body:
            raise DefinitionError(f"{name}: a reduction must be the whole body; compute it as a tensor of its own")
        if isinstance(node, Axis) and node not in axes and node not in reduce_axes:
            raise DefinitionError(f"{name}: the body uses the axis {node}, which is none of its own")
    check_reads(name, body)
    return Tensor(ComputeOp(name, axes, body, checked_attributes(name, attrs)))


def _axis_names(function: Callable[..., Operand], count: int) -> list[str]:
    names: list[str] = []
    if not callable(function):
        raise DefinitionError(f"the body {function!r} is no function of the indices")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"i{index}" for index in range(len(names), count))
        elif parameter.default is inspect.Parameter.empty:
            names.append(parameter.name)
    if len(names) != count:
        raise DefinitionError(f"the function takes {len(names)} indices but the shape has {count} dimensions")
    return names


def _reduction(combiner: str) -> Callable[[Operand, Axis | Sequence[Axis]], Expr]:
    def reduce(source: Operand, axis: Axis | Sequence[Axis]) -> Expr:
        return Reduce(combiner, ir.as_expr(source), _reduce_axes(combiner, axis))

    reduce.__doc__ = f"The {combiner} of `source` over `axis`, which is one reduce axis or several."
    return reduce


def comm_reducer(
    function: Callable[[Expr, Expr], Operand],
    identity: int | float | Callable[[str], int | float],
    name: str = "reduce",
) -> Callable[[Operand, Axis | Sequence[Axis]], Expr]:
    """A reduction of one's own: `function` joins two values, in any order; `identity`, or what it says for a type,
    leaves every value as it is.

    Raises: DefinitionError, when used, if joining two values gives another type.
    """

    def reduce(source: Operand, axis: Axis | Sequence[Axis]) -> Expr:
        value = ir.as_expr(source)
        lhs, rhs = ir.Var("x", value.dtype), ir.Var("y", value.dtype)
        result = ir.as_expr(function(lhs, rhs), value.dtype)
        if result.dtype != value.dtype:
            raise DefinitionError(f"{name}: joining two values of {value.dtype} gives {result.dtype}; cast the result")
        start = ir.Const(identity(value.dtype) if callable(identity) else identity, value.dtype)
        return Reduce(Combiner(lhs, rhs, result, start), value, _reduce_axes(name, axis))

    reduce.__doc__ = f"The {name} of `source` over `axis`, which is one reduce axis or several."
    return reduce


def _reduce_axes(name: str, axis: Axis | Sequence[Axis]) -> tuple[Axis, ...]:
    if not isinstance(axis, (Axis, Sequence)):
        raise DefinitionError(f"{name}: {axis!r} is not a reduce axis; make it with reduce_axis")
    axes = (axis,) if isinstance(axis, Axis) else tuple(axis)
    for item in axes:
        if not isinstance(item, Axis) or item.kind is not AxisKind.REDUCE:
            raise DefinitionError(f"{name}: {item} is not a reduce axis; make it with reduce_axis")
    return axes


sum = _reduction("sum")
prod = _reduction("prod")
max = _reduction("max")
min = _reduction("min")


def cast(dtype: str, value: Operand) -> Expr:
    """`value` converted to the element type `dtype`."""
    return ir.cast(checked_dtype("cast", dtype), value)


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
floor = _unary("floor", of_integers=True)
ceil = _unary("ceil", of_integers=True)
round = _unary("round", of_integers=True)
abs = _unary("abs", of_integers=True)


def isnan(value: Expr) -> Expr:
    """Whether the value is not a number; no integer is one."""
    return ir.Call("isnan", (value,), ir.BOOL) if ir.is_float(value.dtype) else ir.const(False)


def pow(base: Expr, exponent: Operand) -> Expr:
    """`base` to the power `exponent`; a square is a product."""
    if not isinstance(exponent, Expr) and exponent == 2:
        return base * base
    return ir.Call("pow", (base, ir.as_expr(exponent, base.dtype)), base.dtype)


def maximum(lhs: Operand, rhs: Operand) -> Expr:
    """The larger of two values."""
    return ir.binary(BinaryOp.MAX, lhs, rhs)


def minimum(lhs: Operand, rhs: Operand) -> Expr:
    """The smaller of two values."""
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
    for one in conditions:
        result = ir.binary(BinaryOp.AND, result, truth("logical_and", one))
    return result


def logical_or(*conditions: Operand) -> Expr:
    """Whether any condition holds."""
    result: Expr = ir.const(False)
    for one in conditions:
        result = ir.binary(BinaryOp.OR, result, truth("logical_or", one))
    return result


def logical_not(condition: Operand) -> Expr:
    """Whether the condition does not hold."""
    return ir.Not(truth("logical_not", condition))


def if_then_else(condition: Operand, then: Operand, otherwise: Operand) -> Expr:
    """`then` where `condition` holds, else `otherwise`; the side not taken is not evaluated, so it may lie out of
    bounds.
    """
    return ir.select(truth("if_then_else", condition), then, otherwise)
