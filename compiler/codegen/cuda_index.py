"""Proves which indices of CUDA C fit into 32 bits, step by step.

The answer is conservative: what is not proved does not fit. A value read from memory keeps its type in memory, in which
C then computes.
"""

import math
from collections.abc import Mapping

from retune.compiler.ir.expr import Binary, BinaryOp, Call, Cast, Const, Expr, Load, Not, Select, Var
from retune.compiler.ir.interval import Limits

LONG = ("int64", "uint64")
"""The types of 64 bits."""
_MOST = 2**31 - 1


def fits(expr: Expr, ranges: Mapping[Var, tuple[int, int]]) -> bool:
    """Whether an operation on indices of 32 bits has a result of so many, or is one on longer numbers anyway."""
    if is_long(expr):
        return True
    low, high = _limits(expr, ranges)
    return low >= -_MOST and high <= _MOST


def is_long(expr: Expr) -> bool:
    """Whether C counts in 64 bits where the expression is written as it is, with variables of 32."""
    match expr:
        case Load() | Cast():
            return expr.dtype in LONG
        case Call():
            return any(map(is_long, expr.args))
        case Select():
            return is_long(expr.then) or is_long(expr.otherwise)
        case Binary():
            return is_long(expr.lhs) or is_long(expr.rhs)
        case Const():
            return abs(expr.value) > _MOST
        case Not():
            return is_long(expr.value)
    return False


def _limits(expr: Expr, ranges: Mapping[Var, tuple[int, int]]) -> Limits:
    match expr:
        case Const():
            return expr.value, expr.value
        case Var():
            return ranges.get(expr, (-math.inf, math.inf))
        case Select():
            return _union(_limits(expr.then, ranges), _limits(expr.otherwise, ranges))
        case Binary():
            return _joined(expr.op, _limits(expr.lhs, ranges), _limits(expr.rhs, ranges))
    return -math.inf, math.inf


def _union(one: Limits, other: Limits) -> Limits:
    return min(one[0], other[0]), max(one[1], other[1])


def _joined(op: BinaryOp, lhs: Limits, rhs: Limits) -> Limits:
    known = all(map(math.isfinite, (*lhs, *rhs)))
    divides = known and rhs[0] == rhs[1] and rhs[0] > 0
    match op:
        case BinaryOp.ADD:
            return lhs[0] + rhs[0], lhs[1] + rhs[1]
        case BinaryOp.SUB:
            return lhs[0] - rhs[1], lhs[1] - rhs[0]
        case BinaryOp.MUL if known:
            ends = [one * other for one in lhs for other in rhs]
            return min(ends), max(ends)
        case BinaryOp.MIN:
            return min(lhs[0], rhs[0]), min(lhs[1], rhs[1])
        case BinaryOp.MAX:
            return max(lhs[0], rhs[0]), max(lhs[1], rhs[1])
        # Division by a positive constant is monotone: ends go to ends.
        case BinaryOp.FLOORDIV if divides:
            return lhs[0] // rhs[0], lhs[1] // rhs[0]
        # Below the divisor the remainder is the number itself.
        case BinaryOp.FLOORMOD if divides:
            return (lhs[0], lhs[1]) if lhs[0] >= 0 and lhs[1] < rhs[0] else (0, rhs[0] - 1)
    return -math.inf, math.inf
