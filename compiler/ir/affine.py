"""Affine forms of index expressions: the one index algebra of schedules and of the loop IR.

A form is exact, or a hull that covers the index. In the loop IR the atoms are variables and whole expressions that are
not affine, and numbers are ints. In a schedule the atoms are loops, and a number may be an array: one entry for each
program of a family.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Buffer, Const, Expr, Var, dim_expr
from retune.compiler.ir.visit import uses

Number = int | np.ndarray
"""A number of one program, or an int64 array of shape (B,) for a family of B programs."""

Atom = TypeVar("Atom")
N = TypeVar("N", int, Number)

_SUMS = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL)


@dataclass(frozen=True, slots=True)
class Affine(Generic[Atom, N]):
    """`const + Σ coefficient × atom + (0 .. spread)`. If not `exact`, the form is only a hull of the index."""

    const: N = 0
    terms: Mapping[Atom, N] = field(default_factory=dict)
    spread: N = 0
    exact: bool = True

    def plus(self, other: "Affine[Atom, N]", factor: int = 1) -> "Affine[Atom, N]":
        """`self + factor × other`."""
        return (self + (other if factor == 1 else other * factor)).without_zeros()

    def without_zeros(self) -> "Affine[Atom, N]":
        """The form without terms whose coefficient is the int 0. Schedules keep terms whose coefficient is an array:
        whether a term of one program exists must not depend on the other programs of its family.
        """
        if 0 not in [coefficient for coefficient in self.terms.values() if isinstance(coefficient, int)]:
            return self
        terms = {
            atom: coefficient
            for atom, coefficient in self.terms.items()
            if not (isinstance(coefficient, int) and coefficient == 0)
        }
        return Affine(self.const, terms, self.spread, self.exact)

    def __add__(self, other: "Affine[Atom, N]") -> "Affine[Atom, N]":
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms[atom] + coefficient if atom in terms else coefficient
        return Affine(self.const + other.const, terms, self.spread + other.spread, self.exact and other.exact)

    def __mul__(self, factor: N) -> "Affine[Atom, N]":
        terms = {atom: coefficient * factor for atom, coefficient in self.terms.items()}
        if isinstance(self.spread, int) and self.spread == 0:
            return Affine(self.const * factor, terms, 0, self.exact)
        # A negative factor turns the interval around: its lower end moves into the constant.
        reach = self.spread * factor
        return Affine(self.const * factor + lesser(reach, 0), terms, greater(reach, -reach), self.exact)

    def combine(self, op: BinaryOp, other: "Affine[Atom, N]") -> "Affine[Atom, N] | None":
        """The sum, the difference, or the product with a constant; None where the result is not affine."""
        match op:
            case BinaryOp.ADD:
                return self + other
            case BinaryOp.SUB:
                return self.plus(other, -1)
            # A constant with a spread is no number: its product with a loop is not affine.
            case BinaryOp.MUL if not other.terms and other.exact:
                return self * other.const
            case BinaryOp.MUL if not self.terms and self.exact:
                return other * self.const
        return None

    def divide(self, divisor: int) -> "tuple[Affine[Atom, N], Affine[Atom, N]]":
        """`(multiple, rest)` of `divisor × multiple + rest`, for the quotients and remainders of simplification."""
        multiple: dict[Atom, N] = {}
        rest: dict[Atom, N] = {}
        for atom, coefficient in self.terms.items():
            divides = coefficient % divisor == 0
            # Program by program: where the divisor does not divide a coefficient, all of it stays in the rest.
            if isinstance(divides, np.ndarray):
                multiple[atom] = np.where(divides, coefficient // divisor, 0)
                rest[atom] = np.where(divides, 0, coefficient)
            else:
                multiple[atom] = coefficient // divisor if divides else 0
                rest[atom] = 0 if divides else coefficient
        return (
            # Floor division: the rest of a negative constant is not negative.
            Affine(self.const // divisor, multiple),
            Affine(self.const % divisor, rest, self.spread, self.exact),
        )

    def limits(self, extents: Mapping[Atom, N]) -> tuple[N, N]:
        """Smallest and largest value where every atom runs over 0 .. extent-1."""
        low: N = self.const
        high: N = self.const + self.spread
        # Interval arithmetic is exact here, since every atom occurs once.
        for atom, coefficient in self.terms.items():
            reach = coefficient * (extents[atom] - 1)
            low, high = low + lesser(reach, 0), high + greater(reach, 0)
        return low, high

    def hull(self, extents: Mapping[Atom, N]) -> "Affine[Atom, N]":
        """An inexact form that covers every value and does not depend on a loop."""
        low, high = self.limits(extents)
        return between(low, high)


IndexForm = Affine[Expr, int]
"""The form of an index of the loop IR."""


def between(low: N, high: N) -> Affine[Atom, N]:
    """A form of which only the limits `low` and `high` are known."""
    return Affine(low, {}, high - low, False)


def lesser(lhs: N, rhs: N) -> N:
    """The smaller number, program by program."""
    if isinstance(lhs, np.ndarray) or isinstance(rhs, np.ndarray):
        return np.minimum(lhs, rhs)
    return min(lhs, rhs)


def greater(lhs: N, rhs: N) -> N:
    """The larger number, program by program."""
    if isinstance(lhs, np.ndarray) or isinstance(rhs, np.ndarray):
        return np.maximum(lhs, rhs)
    return max(lhs, rhs)


def affine(expr: Expr) -> IndexForm:
    """The normal form of an integer expression. Only sums and products of type INDEX are affine: those of other types
    wrap around, and a conversion may follow a sum that does.
    """
    match expr:
        case Const():
            return Affine(int(expr.value))
        case Binary(op=op, dtype=dtype) if op in _SUMS and dtype == INDEX:
            form = affine(expr.lhs).combine(op, affine(expr.rhs))
            if form is not None:
                return form.without_zeros()
    return Affine(0, {expr: 1})


def flat_index(shape: Sequence[int], indices: Sequence[Expr]) -> IndexForm:
    """The row-major position of an element, in elements. A product with a symbolic stride is an atom."""
    total: IndexForm = Affine()
    stride = 1
    for extent, index in zip(reversed(shape), reversed(indices), strict=True):
        form = affine(index)
        total = total.plus(_with_stride(form, stride)) if isinstance(stride, Dim) else total.plus(form, stride)
        stride *= extent
    return total


def _with_stride(form: IndexForm, stride: Dim) -> IndexForm:
    size = dim_expr(stride)
    terms: dict[Expr, int] = {atom * size: coefficient for atom, coefficient in form.terms.items()}
    return Affine(0, terms | ({size: form.const} if form.const else {}))


def stride_of(buffer: Buffer, indices: Sequence[Expr], var: Var) -> int | None:
    """Elements by which an iteration of the loop over `var` moves an access; None where that varies."""
    form = flat_index(buffer.shape, indices)
    # Inside another atom, such as a quotient, the distance differs from iteration to iteration.
    if any(atom != var and uses(atom, var) for atom in form.terms):
        return None
    return form.terms.get(var, 0)
