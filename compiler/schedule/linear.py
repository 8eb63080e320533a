"""Index expressions of a schedule as affine forms over loops, with hulls where an index is not affine.

Numbers are polymorphic, as in `State`: an int, or an array with an entry for each program of a family.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from retune.compiler.ir.affine import Affine, Number, between, greater, lesser
from retune.compiler.ir.expr import BOOL, INDEX, Binary, BinaryOp, Cast, Const, Expr, Select, is_float

LoopKey = tuple[int, str]
"""A loop: number of its stage and name of its iterator."""

Linear = Affine[LoopKey, Number]
"""A form over loops, each of which runs over 0 .. extent-1."""

# Far from the limits of int64, in which forms are added and scaled.
_UNKNOWN: Linear = Affine(0, {}, np.iinfo(np.int32).max, False)
"""The form of an index that depends on data: it reaches further than any tensor."""


def linearize(index: Expr, leaves: Mapping[Expr, Linear], extents: Mapping[LoopKey, Number]) -> Linear:
    """`index` as a linear form; `leaves` gives the form of every axis in it, `extents` that of every loop."""
    if index in leaves:
        return leaves[index]
    match index:
        case Const():
            return Affine(int(index.value))
        # An index that goes through a float or a bool is not followed.
        case _ if is_float(index.dtype) or index.dtype == BOOL:
            pass
        case Cast() if index.dtype in ("int64", "int32"):
            return _unwrap(linearize(index.value, leaves, extents), index.dtype, extents)
        case Select():
            sides = (linearize(side, leaves, extents) for side in (index.then, index.otherwise))
            return _union(sides, extents)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL | BinaryOp.FLOORDIV | BinaryOp.FLOORMOD):
            lhs = linearize(index.lhs, leaves, extents)
            rhs = linearize(index.rhs, leaves, extents)
            return _unwrap(_combine(index.op, lhs, rhs, extents), index.dtype, extents)
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX):
            sides = (linearize(side, leaves, extents) for side in (index.lhs, index.rhs))
            return _union(sides, extents)
    return _UNKNOWN


def _unwrap(form: Linear, dtype: str, extents: Mapping[LoopKey, Number]) -> Linear:
    """The form of a value of type `dtype`, which may wrap around."""
    if dtype == INDEX:
        return form
    (low, high), bounds = form.limits(extents), np.iinfo(dtype)
    return form if np.all(low >= bounds.min) and np.all(high <= bounds.max) else _UNKNOWN


def _combine(op: BinaryOp, lhs: Linear, rhs: Linear, extents: Mapping[LoopKey, Number]) -> Linear:
    form = lhs.combine(op, rhs)
    if form is not None:
        return form
    if op is BinaryOp.MUL:
        return _product_hull(lhs, rhs, extents)
    if rhs.terms or not isinstance(rhs.const, int) or rhs.const <= 0:
        return _UNKNOWN
    hull = _quotient_hull if op is BinaryOp.FLOORDIV else _remainder_hull
    return _divide(op, lhs, rhs.const, hull(lhs, rhs.const, extents), extents)


def _quotient_hull(form: Linear, divisor: int, extents: Mapping[LoopKey, Number]) -> Linear:
    low, high = form.limits(extents)
    # If the dividend is unbounded, so is the quotient.
    if np.any(high - low >= _UNKNOWN.spread):
        return _UNKNOWN
    return between(low // divisor, high // divisor)


def _remainder_hull(form: Linear, divisor: int, extents: Mapping[LoopKey, Number]) -> Linear:
    low, high = form.limits(extents)
    return form if np.all(low >= 0) and np.all(high < divisor) else between(0, divisor - 1)


def _divide(op: BinaryOp, form: Linear, divisor: int, hull: Linear, extents: Mapping[LoopKey, Number]) -> Linear:
    """A quotient or remainder by the first two rules of `retune.compiler.ir.simplify`; `hull` for the programs in which
    the rest may reach the divisor.
    """
    multiple, rest = form.divide(divisor)
    low, high = rest.limits(extents)
    holds = (low >= 0) & (high < divisor) & (form.spread == 0)
    if not np.any(holds):
        return hull
    exact = multiple if op is BinaryOp.FLOORDIV else rest
    if np.all(holds):
        return exact
    keys = dict.fromkeys((*exact.terms, *hull.terms))
    terms = {key: np.where(holds, exact.terms.get(key, 0), hull.terms.get(key, 0)) for key in keys}
    return Affine(np.where(holds, exact.const, hull.const), terms, np.where(holds, 0, hull.spread), False)


def _product_hull(lhs: Linear, rhs: Linear, extents: Mapping[LoopKey, Number]) -> Linear:
    # The extremes of a product of two intervals are among its corners.
    corners = [a * b for a in lhs.limits(extents) for b in rhs.limits(extents)]
    return _between_all((corner, corner) for corner in corners)


def _union(forms: Iterable[Linear], extents: Mapping[LoopKey, Number]) -> Linear:
    return _between_all(form.limits(extents) for form in forms)


def _between_all(limits: Iterable[tuple[Number, Number]]) -> Linear:
    """A form that covers several intervals."""
    (low, high), *remaining = limits
    for next_low, next_high in remaining:
        low, high = lesser(low, next_low), greater(high, next_high)
    return between(low, high)
