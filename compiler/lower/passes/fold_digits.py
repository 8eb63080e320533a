"""In: a kernel with quotients and remainders of indices. Out: one without those that the loops already know.

Always: exact; what cannot be decided from the extents of the loops stays.

    before: for j.0 in 4: for j.1 in 8: W[(j.0 * 8 + j.1) // 8, (j.0 * 8 + j.1) % 8]
    after:  for j.0 in 4: for j.1 in 8: W[j.0, j.1]
Such indices come from layouts that were chosen for the loops, and from tensors that were reshaped.
"""

from dataclasses import dataclass, replace

from retune.compiler.ir.affine import Affine, affine
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Const, Expr
from retune.compiler.ir.interval import Ranges, as_index, limits
from retune.compiler.ir.stmt import LoopFunction, Stmt, map_inner, map_own, ranges_inside
from retune.compiler.ir.visit import parts, transform


@dataclass(frozen=True, slots=True)
class FoldDigits:
    """Resolves `x // c` and `x % c` where x is a sum of loop variables: a multiple of c, and a rest below c."""

    name: str = "fold-digits"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with simpler indices."""
        body = _folded(function.body, {})
        return function if body is function.body else replace(function, body=body)


def _folded(stmt: Stmt, ranges: Ranges) -> Stmt:
    inside = ranges_inside(stmt, ranges)
    simpler = map_own(stmt, lambda expr: simplified(expr, ranges))
    return map_inner(simpler, lambda inner: _folded(inner, inside))


def simplified(expr: Expr, ranges: Ranges) -> Expr:
    """The expression without the quotients and remainders that the ranges of the variables decide."""
    if not any(map(_is_digit, parts(expr))):
        return expr
    return transform(expr, lambda node: _digit(node, ranges) if isinstance(node, Binary) and _is_digit(node) else None)


def _is_digit(node: Expr) -> bool:
    return (
        isinstance(node, Binary)
        and node.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)
        and node.dtype == INDEX
        and isinstance(node.rhs, Const)
        and node.rhs.value > 0
    )


def _digit(node: Binary, ranges: Ranges) -> Expr | None:
    """The quotient or remainder by parts: what is a multiple of the divisor, and the rest."""
    form = affine(node.lhs)
    divisor = int(node.rhs.value) if isinstance(node.rhs, Const) else 1
    whole = Affine(form.const // divisor, {})
    rest = Affine(form.const % divisor, {})
    for atom, coefficient in form.terms.items():
        if coefficient % divisor == 0:
            whole = whole.plus(Affine(0, {atom: coefficient // divisor}))
        else:
            rest = rest.plus(Affine(0, {atom: coefficient}))
    low, high = limits(rest, ranges)
    alone = low >= 0 and high < divisor
    if not alone and not whole.terms and not whole.const:
        return None
    if node.op is BinaryOp.FLOORDIV:
        return as_index(whole) if alone else as_index(whole) + as_index(rest) // divisor
    return as_index(rest) if alone else as_index(rest) % divisor
