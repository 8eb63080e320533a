"""Interval analysis of indices and conditions, from the ranges of the variables.

It is conservative: an undecided condition may hold or not.
"""

import math
from collections.abc import Mapping

from retune.compiler.ir.affine import Affine, IndexForm, affine
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Const, Expr, Load, Var, const
from retune.compiler.ir.visit import has

Ranges = Mapping[Var, tuple[int, int]]
"""The smallest and the largest value of each variable."""
Limits = tuple[float, float]


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions that all hold where `condition` does."""
    match condition:
        case Binary(op=BinaryOp.AND):
            return (*conjuncts(condition.lhs), *conjuncts(condition.rhs))
    return (condition,)


def slack(condition: Expr) -> IndexForm | None:
    """A form that is at least 0 exactly where a comparison of indices holds; None for any other condition."""
    match condition:
        case Binary(op=BinaryOp.LT | BinaryOp.LE, lhs=lhs, rhs=rhs) if lhs.dtype == INDEX:
            if has(Load, condition):
                return None
            form = affine(rhs).plus(affine(lhs), -1)
            # Over integers a < b is b - a - 1 >= 0.
            return form.plus(Affine(1), -1) if condition.op is BinaryOp.LT else form
    return None


def limits(form: IndexForm, ranges: Ranges) -> Limits:
    """The smallest and the largest value of `form`, infinite where unknown."""
    low = high = float(form.const)
    # Interval arithmetic: atoms that share a variable count as independent, so the interval is at worst too wide.
    for atom, coefficient in form.terms.items():
        ends = [coefficient * end for end in _limits(atom, ranges)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def decide_condition(condition: Expr, ranges: Ranges) -> bool | None:
    """True if `condition` holds for all values of the variables, False if for none, else None."""
    if isinstance(condition, Const):
        return bool(condition.value)
    form = slack(condition)
    if form is None:
        return None
    low, high = limits(form, ranges)
    return True if low >= 0 else False if high < 0 else None


def as_index(form: IndexForm) -> Expr:
    total: Expr = const(0)
    for atom, coefficient in form.terms.items():
        total = total + atom * coefficient
    return total + form.const


def _limits(atom: Expr, ranges: Ranges) -> Limits:
    """The limits of a variable or of an expression that is no sum of variables."""
    match atom:
        case Var():
            return ranges.get(atom, (-math.inf, math.inf))
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.FLOORMOD, rhs=Const(value=divisor)) if divisor > 0:
            low, high = limits(affine(atom.lhs), ranges)
            # A floor is monotonic: the ends of the number give those of the quotient.
            if atom.op is BinaryOp.FLOORDIV:
                return low // divisor, high // divisor
            # Within one period the remainder is the number itself.
            return (low, high) if low >= 0 and high < divisor else (0, divisor - 1)
    return -math.inf, math.inf
