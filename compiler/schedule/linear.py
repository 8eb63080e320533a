"""In: index expressions and what the axes in them stand for. Out: `Linear` forms over loops, with hulls where the
index is not affine.

Always: numbers are polymorphic, as in `State`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.ir.expr import BOOL, INDEX, Binary, BinaryOp, Cast, Const, Expr, Select, is_float
from retune.compiler.schedule.state import Number

LoopKey = tuple[int, str]
"""A loop: number of its stage and name of its iterator."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """The value `const + Σ coefficient × loop + something in 0 .. spread`.

    Every loop runs over 0 .. extent-1. When `exact` is False the form is only a hull of the true index.
    """

    const: Number = 0
    terms: Mapping[LoopKey, Number] = field(default_factory=dict)
    spread: Number = 0
    exact: bool = True

    def __add__(self, other: "Linear") -> "Linear":
        terms = dict(self.terms)
        for key, coefficient in other.terms.items():
            terms[key] = terms[key] + coefficient if key in terms else coefficient
        return Linear(self.const + other.const, terms, self.spread + other.spread, self.exact and other.exact)

    def scaled(self, factor: Number) -> "Linear":
        """The form times `factor`."""
        terms = {key: coefficient * factor for key, coefficient in self.terms.items()}
        if isinstance(self.spread, int) and self.spread == 0:
            return Linear(self.const * factor, terms, 0, self.exact)
        reach = self.spread * factor
        return Linear(self.const * factor + np.minimum(reach, 0), terms, np.abs(reach), self.exact)

    def limits(self, extents: Mapping[LoopKey, Number]) -> tuple[Number, Number]:
        """Smallest and largest value when every loop runs over its extent."""
        low: Number = self.const
        high: Number = self.const + self.spread
        for key, coefficient in self.terms.items():
            reach = coefficient * (extents[key] - 1)
            low = low + np.minimum(reach, 0) if isinstance(reach, np.ndarray) else low + min(reach, 0)
            high = high + np.maximum(reach, 0) if isinstance(reach, np.ndarray) else high + max(reach, 0)
        return low, high

    def hull(self, extents: Mapping[LoopKey, Number]) -> "Linear":
        """An inexact form that covers every value and no longer depends on a loop."""
        low, high = self.limits(extents)
        return Linear(low, {}, high - low, False)


_UNKNOWN = Linear(0, {}, np.iinfo(np.int32).max, False)
"""The form of an index that depends on data: it reaches further than any tensor does."""


def linearize(index: Expr, leaves: Mapping[Expr, Linear], extents: Mapping[LoopKey, Number]) -> Linear:
    """`index` as a linear form; `leaves` gives the form of every axis in it, `extents` that of every loop."""
    if index in leaves:
        return leaves[index]
    match index:
        case Const():
            return Linear(int(index.value))
        case _ if is_float(index.dtype) or index.dtype == BOOL:
            pass
        case Cast() if index.dtype in ("int64", "int32"):
            return _unwrapped(linearize(index.value, leaves, extents), index.dtype, extents)
        case Select():
            sides = (linearize(side, leaves, extents) for side in (index.then, index.otherwise))
            return _union(sides, extents)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL | BinaryOp.FLOORDIV | BinaryOp.FLOORMOD):
            lhs = linearize(index.lhs, leaves, extents)
            rhs = linearize(index.rhs, leaves, extents)
            return _unwrapped(_combine(index.op, lhs, rhs, extents), index.dtype, extents)
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX):
            sides = (linearize(side, leaves, extents) for side in (index.lhs, index.rhs))
            return _union(sides, extents)
    return _UNKNOWN


def _unwrapped(form: Linear, dtype: str, extents: Mapping[LoopKey, Number]) -> Linear:
    """The form of a value of that type, which may wrap around."""
    if dtype == INDEX:
        return form
    (low, high), held = form.limits(extents), np.iinfo(dtype)
    return form if np.all(low >= held.min) and np.all(high <= held.max) else _UNKNOWN


def _combine(op: BinaryOp, lhs: Linear, rhs: Linear, extents: Mapping[LoopKey, Number]) -> Linear:
    if op is BinaryOp.ADD:
        return lhs + rhs
    if op is BinaryOp.SUB:
        return lhs + rhs.scaled(-1)
    if op is BinaryOp.MUL:
        if not rhs.terms and rhs.exact:
            return lhs.scaled(rhs.const)
        if not lhs.terms and lhs.exact:
            return rhs.scaled(lhs.const)
        return _product_hull(lhs, rhs, extents)
    if rhs.terms or not isinstance(rhs.const, int) or rhs.const <= 0:
        return _UNKNOWN
    hull = _quotient_hull if op is BinaryOp.FLOORDIV else _remainder_hull
    return _by_digits(op, lhs, rhs.const, hull(lhs, rhs.const, extents), extents)


def _quotient_hull(form: Linear, divisor: int, extents: Mapping[LoopKey, Number]) -> Linear:
    low, high = form.limits(extents)
    if np.any(high - low >= _UNKNOWN.spread):
        return _UNKNOWN
    return Linear(low // divisor, {}, high // divisor - low // divisor, False)


def _remainder_hull(form: Linear, divisor: int, extents: Mapping[LoopKey, Number]) -> Linear:
    low, high = form.limits(extents)
    if np.all(low >= 0) and np.all(high < divisor):
        return form
    return Linear(0, {}, divisor - 1, False)


def _by_digits(
    op: BinaryOp, form: Linear, divisor: int, hull: Linear, extents: Mapping[LoopKey, Number]
) -> Linear:
    """Quotient or remainder of a form that is a multiple of the divisor and a rest that never reaches it; `hull` for
    those programs whose form is not.
    """
    whole = {key: _where(value % divisor == 0, value, 0) for key, value in form.terms.items()}
    rest = Linear(form.const % divisor, {key: value - whole[key] for key, value in form.terms.items()})
    low, high = rest.limits(extents)
    holds = (low >= 0) & (high < divisor) & (form.spread == 0)
    if not np.any(holds):
        return hull
    multiple = Linear(form.const // divisor, {key: value // divisor for key, value in whole.items()})
    found = multiple if op is BinaryOp.FLOORDIV else rest
    if np.all(holds):
        return found
    keys = dict.fromkeys((*found.terms, *hull.terms))
    terms = {key: _where(holds, found.terms.get(key, 0), hull.terms.get(key, 0)) for key in keys}
    return Linear(_where(holds, found.const, hull.const), terms, _where(holds, 0, hull.spread), False)


def _where(mask: object, then: Number, otherwise: Number) -> Number:
    """One of two numbers, for each program where the mask is an array."""
    if isinstance(mask, np.ndarray):
        return np.where(mask, then, otherwise)
    return then if mask else otherwise


def _product_hull(lhs: Linear, rhs: Linear, extents: Mapping[LoopKey, Number]) -> Linear:
    corners = [a * b for a in lhs.limits(extents) for b in rhs.limits(extents)]
    low, high = corners[0], corners[0]
    for corner in corners[1:]:
        low, high = np.minimum(low, corner), np.maximum(high, corner)
    return Linear(low, {}, high - low, False)


def _union(forms: Iterable[Linear], extents: Mapping[LoopKey, Number]) -> Linear:
    limits = [form.limits(extents) for form in forms]
    low, high = limits[0]
    for other_low, other_high in limits[1:]:
        low, high = np.minimum(low, other_low), np.maximum(high, other_high)
    return Linear(low, {}, high - low, False)
