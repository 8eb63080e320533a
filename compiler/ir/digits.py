"""In: the affine form of an index with quotients and remainders. Out: one with fewer of them.

Always: exact, whatever the values. A number that was taken apart into digits, and whose digits are added up again with
their weights, is that number: as in the address of what threads fetch together, element by element, into rows that lie
one after the other.

    before: (n // 12) * 12 + (n // 4) % 3 * 4 + n % 4        after: n
"""

from collections.abc import Iterator
from dataclasses import dataclass

from retune.compiler.ir.affine import Affine, affine
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Const, Expr
from retune.compiler.ir.interval import as_index


@dataclass(frozen=True, slots=True)
class _Digit:
    """`number // unit % count`; all that is above with a `count` of None."""

    number: Affine
    unit: int
    count: int | None


_Weighted = list[tuple[_Digit, int]]


def joined(form: Affine) -> Affine:
    """The form with digits of one number that lie side by side put together."""
    digits: _Weighted = []
    rest: dict[Expr, int] = {}
    for atom, weight in form.terms.items():
        digit = _digit(atom)
        if digit is None:
            rest[atom] = weight
        else:
            digits.append((digit, weight))
    if len(digits) < 2:
        return form
    fewer = digits
    while (pair := next(_pairs(fewer), None)) is not None:
        fewer = _without(fewer, pair)
    if len(fewer) == len(digits):
        return form
    total = Affine(form.const, rest)
    for digit, weight in fewer:
        total = total.plus(_form(digit), weight)
    return total


def _digit(atom: Expr) -> _Digit | None:
    """The digit that an atom is, if it is one."""
    if not isinstance(atom, Binary) or atom.dtype != INDEX or not isinstance(atom.rhs, Const) or atom.rhs.value < 1:
        return None
    by = int(atom.rhs.value)
    if atom.op is BinaryOp.FLOORDIV:
        number, unit = _in_units(affine(atom.lhs))
        return _Digit(number, unit * by, None)
    if atom.op is BinaryOp.FLOORMOD:
        number, unit = _in_units(affine(atom.lhs))
        return _Digit(number, unit, by)
    return None


def _in_units(form: Affine) -> tuple[Affine, int]:
    """A number and a unit of which the form is the quotient: `n // 4 + 3` is `(n + 12) // 4`."""
    for atom, weight in form.terms.items():
        quotient = weight == 1 and isinstance(atom, Binary) and atom.dtype == INDEX
        if quotient and isinstance(atom, Binary) and atom.op is BinaryOp.FLOORDIV and isinstance(atom.rhs, Const):
            by = int(atom.rhs.value)
            if by > 0:
                others = form.plus(Affine(0, {atom: 1}), -1)
                number, unit = _in_units(affine(atom.lhs))
                return number.plus(others, by * unit), by * unit
    return form, 1


def _pairs(digits: _Weighted) -> Iterator[tuple[int, int]]:
    """Places of digits of which the second is the next higher one of the same number, with the weight for that."""
    for low, (one, weight) in enumerate(digits):
        for high, (other, more) in enumerate(digits):
            if one.count is None or other.unit != one.unit * one.count or more != weight * one.count:
                continue
            apart = other.number.plus(one.number, -1)
            if all(each % other.unit == 0 for each in (apart.const, *apart.terms.values())):
                yield low, high


def _without(digits: _Weighted, pair: tuple[int, int]) -> _Weighted:
    (low, weight), (high, _) = digits[pair[0]], digits[pair[1]]
    assert low.count is not None, "_pairs() has looked"
    count = None if high.count is None else low.count * high.count
    return [(_Digit(high.number, low.unit, count), weight), *(d for n, d in enumerate(digits) if n not in pair)]


def _form(digit: _Digit) -> Affine:
    if digit.unit == 1 and digit.count is None:
        return digit.number
    value = as_index(digit.number)
    value = value if digit.unit == 1 else value // digit.unit
    return affine(value if digit.count is None else value % digit.count)
