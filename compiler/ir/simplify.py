"""Simplification of quotients and remainders of indices: the div/mod rules of both pipelines, as one table.

Every rule is exact and needs no more than the ranges of the variables; what the ranges do not decide stays. `m` and `r`
are affine forms, `c`, `u` and `k` positive literals, in the order in which the rules are tried:

    (c·m + r) // c       ->  m + r // c             r // c is 0 where 0 <= r < c
    (c·m + r) % c        ->  r % c                  r % c is r where 0 <= r < c
    (u·m + r) // (u·k)   ->  m // k                 where 0 <= r < u
    (u·m + r) % (u·k)    ->  (m % k)·u + r          where 0 <= r < u
    n // c·c + n % c     ->  n                      in a sum, with any weight, for any run of digits of a number

The first two resolve layouts that were made for the loops and tensors that were reshaped. The next two keep what is
contiguous visible: `r` may be the lanes of a vector. The last one (`join_digits`) is their inverse, for addresses.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from retune.compiler.ir.affine import Affine, IndexForm, affine
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Const, Expr, Load, Select, select
from retune.compiler.ir.interval import Ranges, as_index, limits
from retune.compiler.ir.visit import has, parts, replace_nodes, transform, variables

_Rule = Callable[[IndexForm, int, Ranges], Expr | None]


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """The expression without the quotients and remainders that the ranges of the variables decide."""
    # Most expressions have no quotient: a search is cheaper than a rebuild.
    if not any(_divisor_of(node) for node in parts(expr)):
        return expr

    def rule(node: Expr) -> Expr | None:
        match node:
            case Binary(op=op) if by := _divisor_of(node):
                return _first_match(op, affine(node.lhs), by, ranges)
        return None

    return transform(expr, rule)


def choose_rows(expr: Expr) -> Expr:
    """The expression with one read in place of a choice between two rows of a buffer, as of a rolled image: the choice
    moves into the row index, so elements along the row are read without a branch.

        before: select(i < 53, x[i + 3, k], x[i - 53, k])        after: x[select(i < 53, i + 3, i - 53), k]
    """

    def rule(node: Select) -> Expr | None:
        match node.then, node.otherwise:
            case Load(buffer, (*rows, last)), Load(other, (*others, end)) if buffer == other and last == end:
                if variables(node.condition).isdisjoint(variables(last)):
                    pairs = zip(rows, others, strict=True)
                    chosen = (
                        then if then == otherwise else select(node.condition, then, otherwise)
                        for then, otherwise in pairs
                    )
                    return Load(buffer, (*chosen, last))
        return None

    return replace_nodes(expr, Select, rule) if has(Select, expr) else expr


def _divisor_of(node: Expr) -> int:
    """The literal that an index is divided by, in a quotient or a remainder; 0 for other nodes."""
    match node:
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.FLOORMOD, rhs=Const(value=by), dtype=dtype) if dtype == INDEX:
            # There are no rules for negative divisors.
            return max(int(by), 0)
    return 0


def _first_match(op: BinaryOp, form: IndexForm, by: int, ranges: Ranges) -> Expr | None:
    """The result of the first matching rule for a quotient or a remainder of `form`, or None."""
    results = (rule(form, by, ranges) for rule in _RULES[op])
    return next((result for result in results if result is not None), None)


def _div_mod(op: BinaryOp, form: IndexForm, by: int, ranges: Ranges) -> Expr:
    """A simplified quotient or remainder of a form that a rule has made."""
    simpler = _first_match(op, form, by, ranges)
    if simpler is not None:
        return simpler
    return as_index(form) // by if op is BinaryOp.FLOORDIV else as_index(form) % by


def _divide(form: IndexForm, by: int) -> tuple[IndexForm, IndexForm]:
    multiple, rest = form.divide(by)
    return multiple.without_zeros(), rest.without_zeros()


def _is_below(form: IndexForm, bound: int, ranges: Ranges) -> bool:
    """Whether the value is known to lie in 0 .. bound-1."""
    low, high = limits(form, ranges)
    return low >= 0 and high < bound


def _split_quotient(form: IndexForm, by: int, ranges: Ranges) -> Expr | None:
    multiple, rest = _divide(form, by)
    if _is_below(rest, by, ranges):
        return as_index(multiple)
    if not multiple.terms and not multiple.const:
        return None
    return as_index(multiple) + _div_mod(BinaryOp.FLOORDIV, rest, by, ranges)


def _drop_multiples(form: IndexForm, by: int, ranges: Ranges) -> Expr | None:
    multiple, rest = _divide(form, by)
    if _is_below(rest, by, ranges):
        return as_index(rest)
    if not multiple.terms and not multiple.const:
        return None
    return _div_mod(BinaryOp.FLOORMOD, rest, by, ranges)


def _quotient_of_units(form: IndexForm, by: int, ranges: Ranges) -> Expr | None:
    parts = _units(form, by, ranges)
    if parts is None:
        return None
    unit, units, _ = parts
    return _div_mod(BinaryOp.FLOORDIV, units, by // unit, ranges)


def _remainder_of_units(form: IndexForm, by: int, ranges: Ranges) -> Expr | None:
    parts = _units(form, by, ranges)
    if parts is None:
        return None
    unit, units, rest = parts
    return _div_mod(BinaryOp.FLOORMOD, units, by // unit, ranges) * unit + as_index(rest)


def _units(form: IndexForm, by: int, ranges: Ranges) -> tuple[int, IndexForm, IndexForm] | None:
    """The largest unit that divides `by`, how many units the form is, and the rest, which is less than a unit."""
    # The largest unit first: it leaves the smallest numbers to divide.
    for unit in sorted({gcd(by, coefficient) for coefficient in form.terms.values()}, reverse=True):
        if 1 < unit < by:
            units, rest = _divide(form, unit)
            if units.terms and _is_below(rest, unit, ranges):
                return unit, units, rest
    return None


_RULES: Mapping[BinaryOp, tuple[_Rule, ...]] = {
    BinaryOp.FLOORDIV: (_split_quotient, _quotient_of_units),
    BinaryOp.FLOORMOD: (_drop_multiples, _remainder_of_units),
}


def divisor(expr: Expr) -> int:
    """A number that divides every value of an index; 0 when it is always 0."""
    form = affine(expr)
    return gcd(form.const, *(coefficient * _divisor_of_atom(atom) for atom, coefficient in form.terms.items()))


def _divisor_of_atom(expr: Expr) -> int:
    known = _divisor_of_operation(expr)
    # Values that wrap around are known only modulo a power of two.
    return known if expr.dtype == INDEX else known & -known


def _divisor_of_operation(expr: Expr) -> int:
    match expr:
        case Binary(op=BinaryOp.MUL):
            return divisor(expr.lhs) * divisor(expr.rhs)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.FLOORMOD | BinaryOp.MIN | BinaryOp.MAX):
            return gcd(divisor(expr.lhs), divisor(expr.rhs))
        case Binary(op=BinaryOp.FLOORDIV) if by := _divisor_of(expr):
            known = divisor(expr.lhs)
            return known // by if known % by == 0 else 1
        case Select():
            return gcd(divisor(expr.then), divisor(expr.otherwise))
    return 1


@dataclass(frozen=True, slots=True)
class _Digit:
    """`number // unit % count`; a `count` of None keeps all higher digits."""

    number: IndexForm
    unit: int
    count: int | None

    @property
    def form(self) -> IndexForm:
        if self.unit == 1 and self.count is None:
            return self.number
        value = as_index(self.number)
        value = value if self.unit == 1 else value // self.unit
        return affine(value if self.count is None else value % self.count)


_Weighted = list[tuple[_Digit, int]]


def join_digits(form: IndexForm) -> IndexForm:
    """The form with adjacent digits of the same number joined: threads that fetch a tile together compute its address
    from such digits.

        before: (n // 12) * 12 + (n // 4) % 3 * 4 + n % 4        after: n
    """
    digits: _Weighted = []
    rest: dict[Expr, int] = {}
    for atom, weight in form.terms.items():
        digit = _digit(atom)
        if digit is None:
            rest[atom] = weight
        else:
            digits.append((digit, weight))
    fewer = digits
    # Each step joins two digits, so it ends after as many steps as there are digits.
    while (pair := next(_pairs(fewer), None)) is not None:
        fewer = _join_pair(fewer, *pair)
    if len(fewer) == len(digits):
        return form
    total: IndexForm = Affine(form.const, rest)
    for digit, weight in fewer:
        total = total.plus(digit.form, weight)
    return total


def _digit(atom: Expr) -> _Digit | None:
    """`atom` as a digit; None if it is none."""
    match atom:
        case Binary(op=op) if by := _divisor_of(atom):
            # Of nested quotients one remains: n // u // by is n // (u * by), for floors by positive numbers.
            number, unit = _in_units(affine(atom.lhs))
            quotient = op is BinaryOp.FLOORDIV
            return _Digit(number, unit * by, None) if quotient else _Digit(number, unit, by)
    return None


def _in_units(form: IndexForm) -> tuple[IndexForm, int]:
    """A number and a unit of which the form is the quotient: `n // 4 + 3` is `(n + 12) // 4`."""
    for atom, weight in form.terms.items():
        match atom:
            case Binary(op=BinaryOp.FLOORDIV) if weight == 1 and (by := _divisor_of(atom)):
                remaining = form.plus(Affine(0, {atom: 1}), -1)
                number, unit = _in_units(affine(atom.lhs))
                return number.plus(remaining, by * unit), by * unit
    return form, 1


def _pairs(digits: _Weighted) -> Iterator[tuple[int, int]]:
    """Index pairs (low, high) into `digits`: `high` is the next higher digit of the same number and weight."""
    for low, (lower, weight) in enumerate(digits):
        for high, (higher, more) in enumerate(digits):
            if lower.count is None or higher.unit != lower.unit * lower.count or more != weight * lower.count:
                continue
            # A multiple of the higher digit's unit changes no lower digit, so the numbers may differ by it.
            difference = higher.number.plus(lower.number, -1)
            if all(coefficient % higher.unit == 0 for coefficient in (difference.const, *difference.terms.values())):
                yield low, high


def _join_pair(digits: _Weighted, low: int, high: int) -> _Weighted:
    (lower, weight), (higher, _) = digits[low], digits[high]
    count = None if higher.count is None or lower.count is None else lower.count * higher.count
    remaining = (digit for index, digit in enumerate(digits) if index not in (low, high))
    return [(_Digit(higher.number, lower.unit, count), weight), *remaining]
