"""In: conditions on indices, and the ranges of the variables. Out: whether they hold.

Always: on the safe side; a condition that is not decided may hold or not.
"""

import math
from collections.abc import Mapping

from retune.compiler.ir.affine import Affine, affine
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Const, Expr, Load, Var, const
from retune.compiler.ir.visit import walk

Ranges = Mapping[Var, tuple[int, int]]
"""The smallest and the largest value of each variable."""
Limits = tuple[float, float]


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions that all hold where `condition` does."""
    if isinstance(condition, Binary) and condition.op is BinaryOp.AND:
        return (*conjuncts(condition.lhs), *conjuncts(condition.rhs))
    return (condition,)


def slack(condition: Expr) -> Affine | None:
    """A form that is at least 0 exactly where a comparison of indices holds; None for any other condition."""
    if not isinstance(condition, Binary) or condition.lhs.dtype != INDEX:
        return None
    if condition.op not in (BinaryOp.LT, BinaryOp.LE) or any(isinstance(node, Load) for node in walk(condition)):
        return None
    form = affine(condition.rhs).plus(affine(condition.lhs), -1)
    return form.plus(Affine(1), -1) if condition.op is BinaryOp.LT else form


def limits(form: Affine, ranges: Ranges) -> Limits:
    """The smallest and the largest value of a form, infinite where nothing is known."""
    low = high = float(form.const)
    for atom, coefficient in form.terms.items():
        ends = [coefficient * end for end in _limits(atom, ranges)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def decided(condition: Expr, ranges: Ranges) -> bool | None:
    """Whether a condition holds for all values of the variables (True), for none of them (False), or neither."""
    if isinstance(condition, Const):
        return bool(condition.value)
    form = slack(condition)
    if form is None:
        return None
    low, high = limits(form, ranges)
    return True if low >= 0 else False if high < 0 else None


def as_index(form: Affine) -> Expr:
    """The form as an expression."""
    total: Expr = const(0)
    for atom, coefficient in form.terms.items():
        total = total + atom * coefficient
    return total + form.const


def _limits(atom: Expr, ranges: Ranges) -> Limits:
    """The limits of a variable, or of what is no sum of variables."""
    if isinstance(atom, Var):
        return ranges.get(atom, (-math.inf, math.inf))
    if isinstance(atom, Binary) and isinstance(atom.rhs, Const) and atom.rhs.value > 0:
        low, high = limits(affine(atom.lhs), ranges)
        divisor = atom.rhs.value
        if atom.op is BinaryOp.FLOORDIV:
            return low // divisor, high // divisor
        if atom.op is BinaryOp.FLOORMOD:
            return (low, high) if low >= 0 and high < divisor else (0, divisor - 1)
    return -math.inf, math.inf
