"""In: operands and attributes of element-wise operators. Out: one compute each.

Always: result element i needs operand element i only, after broadcasting.
"""

from collections.abc import Callable
from math import pi, sqrt
from typing import cast as as_type

import numpy as np

from retune.compiler import te
from retune.compiler.dtype import is_float
from retune.compiler.ir.expr import TRIGONOMETRIC, Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.tensor import Tensor


def _all_bits(dtype: str) -> Expr:
    return te.const(int(np.iinfo(dtype).max) if dtype.startswith("u") else -1, dtype)


def _left_over(a: Expr, b: Expr, *, floored: bool) -> Expr:
    """a less the multiple of b below it (`floored`: the result has the sign of b) or towards zero (that of a)."""
    if floored:
        return a % b
    if not is_float(a.dtype):
        return a - a / b * b
    rest = te.abs(a) % te.abs(b)
    return te.select(a < 0, -rest, rest)


def _gelu(x: Expr) -> Expr:
    return x * 0.5 * (te.erf(x * sqrt(0.5)) + 1.0)


def _gelu_tanh(x: Expr) -> Expr:
    return x * 0.5 * (te.tanh(x * (x * x * (0.044715 * sqrt(2 / pi)) + sqrt(2 / pi))) + 1.0)


def _hard_swish(x: Expr) -> Expr:
    return x * te.minimum(te.maximum(x * (1 / 6) + 0.5, 0.0), 1.0)


_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "relu": lambda x: te.maximum(x, 0),
    "sigmoid": te.sigmoid,
    "tanh": te.tanh,
    "silu": lambda x: x * te.sigmoid(x),
    "hard_swish": _hard_swish,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "exp": te.exp,
    "log": te.log,
    "sqrt": te.sqrt,
    "erf": te.erf,
    "neg": lambda x: -x,
    "abs": te.abs,
    "floor": te.floor,
    "ceil": te.ceil,
    "round": te.round,
    **{name: getattr(te, name) for name in TRIGONOMETRIC},
    "sign": lambda x: te.if_then_else(x > 0, 1, te.if_then_else(x < 0, -1, x)),
    "bit_not": lambda x: te.logical_not(x) if x.dtype == "bool" else x ^ _all_bits(x.dtype),
    "is_nan": te.isnan,
    "identity": lambda x: x,
}

_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": te.pow,
    "maximum": te.maximum,
    "minimum": te.minimum,
    "mod": lambda a, b: _left_over(a, b, floored=True),
    "fmod": lambda a, b: _left_over(a, b, floored=False),
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
    "shift_left": lambda a, b: a << b,
    "shift_right": lambda a, b: a >> b,
    "equal": te.equal,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
}

NAMES = frozenset({*_UNARY, *_BINARY, "leaky_relu", "clip", "cast", "bits", "where"})
"""The operators that `elementwise` expresses."""


def elementwise(call: OpCall) -> Tensor:
    """Any operator of `NAMES`."""

    def body(*axes: Expr) -> Expr:
        return _value(call, [call.element(place, axes) for place in range(len(call.operands))])

    return te.compute(call.shape, body, name=call.name)


def _value(call: OpCall, values: list[Expr]) -> Expr:
    x = values[0]
    if call.op in _BINARY:
        return _BINARY[call.op](x, values[1])
    if call.op == "leaky_relu":
        return te.select(te.const(0, x.dtype) < x, x, x * call.number("alpha"))
    if call.op == "clip":
        return _clip(x, call.number("low"), call.number("high"))
    if call.op == "where":
        return te.select(x, values[1], values[2])
    if call.op == "bits":
        return te.bits(call.text("dtype"), x)
    if call.op == "cast":
        return te.cast(call.text("dtype"), x)
    return _UNARY[call.op](x)


def _clip(x: Expr, low: float, high: float) -> Expr:
    """Infinite bounds bound nothing; bounds of an integer are whole."""
    number = float if is_float(x.dtype) else int
    if low > float("-inf"):
        x = te.maximum(x, as_type(float, number(low)))
    if high < float("inf"):
        x = te.minimum(x, as_type(float, number(high)))
    return x
