"""In: an index expression. Out: its affine normal form.

Always: exact; a part that is not affine is kept whole as an atom.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Const, Expr, Var


@dataclass(frozen=True, slots=True)
class Affine:
    """`const + Σ coefficient × atom`; atoms are variables, or whole expressions that are not affine. No coefficient is
    0.
    """

    const: int = 0
    terms: Mapping[Expr, int] = field(default_factory=dict)

    def plus(self, other: "Affine", factor: int = 1) -> "Affine":
        """`self + factor × other`."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * coefficient
        return Affine(self.const + factor * other.const, {atom: value for atom, value in terms.items() if value})


def affine(expr: Expr) -> Affine:
    """The normal form of an integer expression. Sums and products of other types than indices wrap around, so they are
    not affine; nor is a conversion, before which there may be such a one.
    """
    match expr:
        case Const():
            return Affine(int(expr.value))
        case Var():
            return Affine(0, {expr: 1})
        case Binary() if expr.dtype != INDEX:
            return Affine(0, {expr: 1})
        case Binary(op=BinaryOp.ADD):
            return affine(expr.lhs).plus(affine(expr.rhs))
        case Binary(op=BinaryOp.SUB):
            return affine(expr.lhs).plus(affine(expr.rhs), -1)
        case Binary(op=BinaryOp.MUL):
            lhs, rhs = affine(expr.lhs), affine(expr.rhs)
            if not rhs.terms:
                return Affine().plus(lhs, rhs.const)
            if not lhs.terms:
                return Affine().plus(rhs, lhs.const)
    return Affine(0, {expr: 1})


def flat_index(shape: Sequence[int], indices: Sequence[Expr]) -> Affine:
    """The row-major position of an element, in elements."""
    total, stride = Affine(), 1
    for extent, index in zip(reversed(shape), reversed(indices), strict=True):
        total = total.plus(affine(index), stride)
        stride *= extent
    return total
