"""In: a kernel with quotients and remainders of indices. Out: one whose vectors are seen to lie side by side.

Always: exact; what cannot be decided from the extents of the loops stays.

    before: threadIdx.x t in 32: vector v in 4: s[(t * 4 + v) // 8, (t * 4 + v) % 8]
    after:  threadIdx.x t in 32: vector v in 4: s[t // 2, (t % 2) * 4 + v]
"""

from dataclasses import dataclass, replace
from math import gcd

from retune.compiler.ir.affine import Affine, affine
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Const, Expr
from retune.compiler.ir.interval import Ranges, as_index, limits
from retune.compiler.ir.stmt import For, Let, LoopFunction, map_exprs, walk_stmt
from retune.compiler.ir.visit import transform


@dataclass(frozen=True, slots=True)
class FoldUnits:
    """Resolves `x // c` and `x % c` where x counts units of several elements, of which c is a whole number."""

    name: str = "fold-units"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with simpler indices."""
        ranges: Ranges = {}
        for stmt in walk_stmt(function.body):
            if isinstance(stmt, (For, Let)):  # of loops with one variable the longest says what it may be
                most = ranges.get(stmt.var, (0, 0))[1]
                ranges = {**ranges, stmt.var: (0, max(most, stmt.extent - 1))}
        body = map_exprs(function.body, lambda expr: transform(expr, lambda node: _folded(node, ranges)))
        return replace(function, body=body)


def _folded(node: Expr, ranges: Ranges) -> Expr | None:
    if not isinstance(node, Binary) or node.op not in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
        return None
    if node.dtype != INDEX or not isinstance(node.rhs, Const) or node.rhs.value < 1:
        return None
    divisor, form = int(node.rhs.value), affine(node.lhs)
    for unit in sorted({gcd(divisor, coefficient) for coefficient in form.terms.values()}, reverse=True):
        if 1 < unit < divisor:
            units, rest = _parted(form, unit)
            low, high = limits(rest, ranges)
            if low >= 0 and high < unit and units.terms:
                return _in_units(node.op, units, rest, unit, divisor // unit)
    return None


def _parted(form: Affine, unit: int) -> tuple[Affine, Affine]:
    """How many units, and what is left."""
    units, rest = Affine(form.const // unit, {}), Affine(form.const % unit, {})
    for atom, coefficient in form.terms.items():
        if coefficient % unit == 0:
            units = units.plus(Affine(0, {atom: coefficient // unit}))
        else:
            rest = rest.plus(Affine(0, {atom: coefficient}))
    return units, rest


def _in_units(op: BinaryOp, units: Affine, rest: Affine, unit: int, divisor: int) -> Expr:
    """The quotient or the remainder by so many units."""
    count = as_index(units)
    return count // divisor if op is BinaryOp.FLOORDIV else (count % divisor) * unit + as_index(rest)
