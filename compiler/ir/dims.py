"""Symbolic dimensions: integers known only when a network runs, as polynomials over symbols.

A `Dim` takes the place of an extent. Arithmetic gives a `Dim`, or an int where the symbols cancel. A comparison gives a
bool: if it is the same for all values of the symbols it is decided at once, otherwise by the numbers that `Assumptions`
gives the symbols, and kept as a `Guard`. The results are right wherever the guards hold.

    with Assumptions({"n": 7}) as assumed:
        n = Dim.symbol("n")
        rows = 12 * n // 4 if n > 1 else n      # 3*n
    assumed.guards                              # n > 1

A `Dim` never turns into an int by itself: `int(n)`, `range(n)` and NumPy's conversions raise TypeError.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, SupportsInt, TypeGuard

import numpy as np

from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import DefinitionError

if TYPE_CHECKING:
    _Integer = int  # what computes with extents is typed for ints, and takes a `Dim` as well
else:
    _Integer = object

active = threading.local()
"""What decides comparisons in this thread: its `assumptions`, which `guards.Assumptions` sets."""
_MOST = 2**31
"""The largest extent that comparisons are decided for without a guard."""
_MOST_KEPT = 1 << 14
"""Results of each operation to keep: a network computes the same extents for each of its layers."""
_MOST_TERMS = 64
"""More terms than the shapes of networks have; a damaged file might exceed it."""


@dataclass(frozen=True, slots=True, eq=False)
class Quotient:
    """The remainder of `numerator // denominator` (or `%`) after the exactly divisible terms are taken out."""

    op: str
    numerator: int
    denominator: int

    def value(self, numbers: Mapping[str, int]) -> int:
        """The value for these values of the symbols. Raises: ZeroDivisionError."""
        numerator, denominator = substitute(self.numerator, numbers), substitute(self.denominator, numbers)
        return numerator // denominator if self.op == "//" else numerator % denominator

    def __eq__(self, other: object) -> bool:
        # By structure: `==` of extents is a decision.
        return (
            isinstance(other, Quotient)
            and self.op == other.op
            and _is_same(self.numerator, other.numerator)
            and _is_same(self.denominator, other.denominator)
        )

    def __hash__(self) -> int:
        return hash((self.op, self.numerator, self.denominator))

    def __str__(self) -> str:
        return f"(({self.numerator}) {self.op} ({self.denominator}))"


Atom = str | Quotient
Monomial = tuple[Atom, ...]


class Dim(_Integer):
    """An integer that depends on symbols: a sum of products of symbols and quotients. Immutable.

    Symbols that end in `]` stand for elements of arrays, and may be negative; all others are extents.
    """

    __slots__ = ("_hash", "_interval", "_text", "terms")

    terms: Mapping[Monomial, int]
    _hash: int
    _text: str
    _interval: tuple[float, float] | None

    def __new__(cls, terms: Mapping[Monomial, int]) -> "Dim":
        """`terms`: products and their nonzero factors, at least a symbol in one product; see `_sum`."""
        dim = object.__new__(cls)
        # A canonical order: equal polynomials have equal terms, hashes and texts.
        dim.terms = dict(sorted(terms.items(), key=_order)) if len(terms) > 1 else terms
        # Odd factors: -1 and -2 have one hash, and dictionaries compare what has one hash, which here is a decision.
        dim._hash = hash(tuple((monomial, 2 * factor + 1) for monomial, factor in dim.terms.items()))
        dim._text, dim._interval = "", None
        return dim

    @classmethod
    def symbol(cls, name: str) -> "Dim":
        return cls({(name,): 1})

    def __reduce__(self) -> tuple[object, ...]:
        return Dim, (dict(self.terms),)

    def value(self, numbers: Mapping[str, int]) -> int:
        return substitute(self, numbers)

    @property
    def symbols(self) -> frozenset[str]:
        symbols: set[str] = set()
        for atom in self._atoms():
            if isinstance(atom, str):
                symbols.add(atom)
            else:
                parts = (atom.numerator, atom.denominator)
                symbols = symbols.union(*map(symbols_in, parts))
        return frozenset(symbols)

    def _atoms(self) -> Iterable[Atom]:
        return (atom for monomial in self.terms for atom in monomial)

    # Arithmetic

    def __add__(self, other: int) -> int:
        return _sum(self, other, 1) if is_integer(other) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return _sum(self, other, -1) if is_integer(other) else NotImplemented

    def __rsub__(self, other: int) -> int:
        return _sum(other, self, -1) if is_integer(other) else NotImplemented

    def __neg__(self) -> int:
        return _sum(0, self, -1)

    def __pos__(self) -> int:
        return self

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def __mul__(self, other: int) -> int:
        return _product(self, other) if is_integer(other) else NotImplemented

    __rmul__ = __mul__

    def __pow__(self, other: int, modulus: None = None) -> int:  # type: ignore[override]
        # The number of products grows with the power; no shape needs a higher power.
        if type(other) is not int or not 0 <= other <= 8:
            return NotImplemented
        result = 1
        for _ in range(other):
            result = result * self
        return result

    def __floordiv__(self, other: int) -> int:
        return _divide(self, other)[0] if is_integer(other) else NotImplemented

    def __rfloordiv__(self, other: int) -> int:
        return _divide(other, self)[0] if is_integer(other) else NotImplemented

    def __mod__(self, other: int) -> int:
        return _divide(self, other)[1] if is_integer(other) else NotImplemented

    def __rmod__(self, other: int) -> int:
        return _divide(other, self)[1] if is_integer(other) else NotImplemented

    # Comparisons

    def __eq__(self, other: object) -> bool:
        # First what needs no sum: sums are kept by their operands, which a dictionary compares.
        if isinstance(other, Dim) and _is_same(self, other):
            return True
        return _decide_zero(_sum(self, other, -1)) if is_integer(other) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not _decide_zero(_sum(self, other, -1)) if is_integer(other) else NotImplemented

    def __lt__(self, other: int) -> bool:
        return _decide_positive(_sum(other, self, -1)) if is_integer(other) else NotImplemented

    def __gt__(self, other: int) -> bool:
        return _decide_positive(_sum(self, other, -1)) if is_integer(other) else NotImplemented

    def __le__(self, other: int) -> bool:
        return not _decide_positive(_sum(self, other, -1)) if is_integer(other) else NotImplemented

    def __ge__(self, other: int) -> bool:
        # Over integers a >= b is not (b - a > 0), so one kind of guard serves all comparisons.
        return not _decide_positive(_sum(other, self, -1)) if is_integer(other) else NotImplemented

    def __bool__(self) -> bool:
        return not _decide_zero(self)

    def __hash__(self) -> int:
        # By structure, unlike `==`, which the numbers of `Assumptions` decide.
        return self._hash

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if not self._text:  # products are sorted by the texts of their factors
            self._text = self._to_text()
        return self._text

    def _to_text(self) -> str:
        text = ""
        for monomial, factor in self.terms.items():
            names = [str(atom) for atom in monomial]
            product = "*".join(names if abs(factor) == 1 and names else [str(abs(factor)), *names])
            sign = " - " if factor < 0 else " + "
            text += (sign if text else sign.strip().replace("+", "")) + product
        return text


def _is_same(first: int, second: int) -> bool:
    """Whether two extents have the same terms: no decision."""
    return first is second or _terms(first) == _terms(second)


def symbols_in(value: int) -> frozenset[str]:
    """The symbols of an extent, none of a number."""
    return value.symbols if isinstance(value, Dim) else frozenset()


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is an int of Python or NumPy, or a `Dim`."""
    return isinstance(value, int | Dim | np.integer)


def is_certain(value: int) -> bool:
    """Whether `value` is positive for all values of its symbols, as far as intervals show it; inside of `Assumptions`
    also where a guard says so.
    """
    return _bounds(value)[0] > 0 or (getattr(active, "assumptions", None) is not None and value > 0)


def may_be_positive(value: int) -> bool:
    """Whether `value` is positive for any values of its symbols, as far as intervals show it. No guard."""
    return _bounds(value)[1] > 0


def same(first: int, second: int) -> bool:
    """Whether two extents are equal for all values of their symbols, as their polynomials show: no guard."""
    return not isinstance(_sum(first, second, -1), Dim) and first == second


def same_shape(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes have the same extents, see `same`."""
    return len(first) == len(second) and all(map(same, first, second))


def estimate(value: int) -> int:
    """A likely number for an extent, from the `Assumptions`. No guard: for choices that are right either way."""
    assumptions = getattr(active, "assumptions", None)
    return value if assumptions is None else substitute(value, assumptions.numbers)


def whole(item: SupportsInt) -> int:
    """An element of an array of integers as an int, or the `Dim` that it is. Raises: as `int`."""
    return item if isinstance(item, Dim) else int(item)


def integers(items: object) -> Array:
    """An int64 array of a number or numbers; an array of objects where any of them is a `Dim`."""
    array = np.asarray(items, object)
    return array if any(isinstance(item, Dim) for item in array.flat) else array.astype("int64")


def substitute(value: int, numbers: Mapping[str, int]) -> int:
    """The number that an extent is for these of its symbols. Raises: ZeroDivisionError; KeyError."""
    if not isinstance(value, Dim):
        return value
    total = 0
    for monomial, factor in value.terms.items():
        for atom in monomial:
            factor *= numbers[atom] if isinstance(atom, str) else atom.value(numbers)
        total += factor
    return total


def _order(term: tuple[Monomial, int]) -> tuple[int, str]:
    return -len(term[0]), "*".join(map(str, term[0]))


def _terms(value: int) -> Mapping[Monomial, int]:
    return value.terms if isinstance(value, Dim) else {(): int(value)} if value else {}


def _extent(terms: Mapping[Monomial, int]) -> int:
    """The extent of products and their factors: an int where no symbol is left."""
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not kept or list(kept) == [()]:
        return kept.get((), 0)
    if len(kept) > _MOST_TERMS:
        raise DefinitionError(f"a dimension is a sum of more than {_MOST_TERMS} products")
    return Dim(kept)


@lru_cache(_MOST_KEPT)
def _sum(lhs: int, rhs: int, sign: int) -> int:
    terms = dict(_terms(lhs))
    for monomial, factor in _terms(rhs).items():
        terms[monomial] = terms.get(monomial, 0) + sign * factor
    return _extent(terms)


@lru_cache(_MOST_KEPT)
def _product(lhs: int, rhs: int) -> int:
    # Most products of shapes have a number for a factor, and many are with 1.
    if type(rhs) is int:
        lhs, rhs = rhs, lhs
    if type(lhs) is int:
        return rhs if lhs == 1 else _extent({monomial: lhs * factor for monomial, factor in _terms(rhs).items()})
    terms: dict[Monomial, int] = {}
    for left, factor in _terms(lhs).items():
        for right, weight in _terms(rhs).items():
            # Products commute: sorted factors give equal products one key.
            monomial = tuple(sorted((*left, *right), key=str))
            terms[monomial] = terms.get(monomial, 0) + factor * weight
    return _extent(terms)


def _divide(value: int, by: int) -> tuple[int, int]:
    """Quotient and remainder: the terms that `by` divides, and a `Quotient` of the others."""
    if not by:  # a decision, which each of the `Assumptions` notes
        raise ZeroDivisionError("a dimension divided by 0")
    return _divide_by_some(value, by)


@lru_cache(_MOST_KEPT)
def _divide_by_some(value: int, by: int) -> tuple[int, int]:
    divisor = _terms(by)
    exact: dict[Monomial, int] = {}
    rest = dict(_terms(value))
    # Polynomial division by one product: term by term. A divisor of several terms is matched only as a whole.
    if len(divisor) == 1:
        ((atoms, number),) = divisor.items()
        for monomial, factor in list(rest.items()):
            left = _without(monomial, atoms)
            if left is not None and factor % number == 0:
                exact[left] = rest.pop(monomial) // number
    elif rest == dict(divisor):
        return 1, 0
    remainder = _extent(rest)
    if not isinstance(remainder, Dim) and not isinstance(by, Dim):
        quotient, remainder = divmod(remainder, int(by))
        return _sum(_extent(exact), quotient, 1), remainder
    if not isinstance(remainder, Dim) and not remainder:
        return _extent(exact), 0
    quotient = Dim({(Quotient("//", remainder, by),): 1})
    return _sum(_extent(exact), quotient, 1), Dim({(Quotient("%", remainder, by),): 1})


def _without(monomial: Monomial, atoms: Monomial) -> Monomial | None:
    """`monomial` without the factors `atoms`; None when it lacks any of them."""
    left = list(monomial)
    for atom in atoms:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


# Decisions


def _decide_zero(value: int) -> bool:
    if not isinstance(value, Dim):
        return value == 0
    # Interval arithmetic first: what holds for every value of the symbols needs no guard.
    low, high = _bounds(value)
    if low > 0 or high < 0:
        return False
    if len(value.terms) == 1:  # a product is zero when a factor is
        ((atoms, _),) = value.terms.items()
        return any(_decide(Dim({(atom,): 1}), is_zero=True) for atom in dict.fromkeys(atoms))
    return _decide(value, is_zero=True)


def _decide_positive(value: int) -> bool:
    if not isinstance(value, Dim):
        return value > 0
    low, high = _bounds(value)
    if low > 0 or high <= 0:
        return low > 0
    # A product of factors that are never negative is positive exactly where all are.
    if len(value.terms) == 1 and low == 0:
        ((atoms, _),) = value.terms.items()
        if all(_atom_bounds(atom)[0] >= 0 for atom in atoms):
            return all(_decide_atom(atom) for atom in dict.fromkeys(atoms))
    return _decide(value, is_zero=False)


def _decide_atom(atom: Atom) -> bool:
    """Whether a factor that is never negative is positive."""
    return _atom_bounds(atom)[0] > 0 or _decide(Dim({(atom,): 1}), is_zero=False)


def _decide(dim: Dim, *, is_zero: bool) -> bool:
    assumptions = getattr(active, "assumptions", None)
    if assumptions is None:
        raise DefinitionError(f"whether {dim} is {'zero' if is_zero else 'positive'} is not known before the run")
    return bool(assumptions.decide(dim, is_zero=is_zero))


def _bounds(value: int) -> tuple[float, float]:
    """The least and the largest value that the bounds of the symbols allow."""
    if not isinstance(value, Dim):
        return value, value
    # Kept: quotients nest, and each is in several terms.
    if value._interval is None:
        low, high = _term_bounds(value)
        expanded = _without_quotients(value)
        if expanded is not value:
            below, above = _bounds(expanded)
            low, high = max(low, below), min(high, above)
        value._interval = low, high
    return value._interval


def _without_quotients(value: int) -> int:
    """The value with X - X % d for each d * (X // d): what windows with strides leave of an extent then cancels."""
    total, is_same = 0, True
    for monomial, factor in _terms(value).items():
        term = Dim({monomial: factor}) if monomial else factor
        match monomial:
            case (Quotient("//", numerator, int(divisor)),) if divisor > 0 and factor % divisor == 0:
                term, is_same = factor // divisor * (numerator - numerator % divisor), False
        total = _sum(total, term, 1)
    return value if is_same else total


def _term_bounds(value: int) -> tuple[float, float]:
    low, high = 0.0, 0.0
    # Product by product: where one symbol is in several, the interval is wider than the values, never narrower.
    for monomial, factor in _terms(value).items():
        least, most = float(factor), float(factor)
        for atom in monomial:
            ends = [end * other for end in (least, most) for other in _atom_bounds(atom)]
            least, most = min(ends), max(ends)
            if not (isfinite(least) and isfinite(most)):
                return -inf, inf
        low += least
        high += most
    return low, high


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, str):
        return (-inf, inf) if atom.endswith("]") else (0, _MOST)
    if isinstance(atom.denominator, Dim) or atom.denominator <= 0:
        return -inf, inf
    if atom.op == "%":
        return 0, atom.denominator - 1
    low, high = _bounds(atom.numerator)
    return (low // atom.denominator, high // atom.denominator) if isfinite(low) else (low, high)


# As data


def dim_to_json(value: int) -> object:
    """An extent as JSON: an int, or `{"dim": [[factor, atom, ...], ...]}` whose atoms are symbols or `[op, x, y]`."""
    if not isinstance(value, Dim):
        return int(value)
    return {"dim": [[factor, *map(_atom_to_json, monomial)] for monomial, factor in value.terms.items()]}


def _atom_to_json(atom: Atom) -> object:
    return atom if isinstance(atom, str) else [atom.op, dim_to_json(atom.numerator), dim_to_json(atom.denominator)]


def dim_from_json(data: Any) -> int:
    """The extent that `dim_to_json` was given. Raises: an error of `archive.DAMAGE` for anything else."""
    if type(data) is int:
        return data
    total = 0
    for factor, *atoms in data["dim"]:
        if type(factor) is not int:
            raise TypeError(f"a dimension has the factor {factor!r:.80}")
        term = factor
        for atom in map(_atom_from_json, atoms):
            term = _product(term, Dim({(atom,): 1}))
        total = _sum(total, term, 1)
    return total


def _atom_from_json(data: Any) -> Atom:
    if isinstance(data, str):
        return data
    op, numerator, denominator = data
    if op not in ("//", "%"):
        raise ValueError(f"a dimension is computed by {op!r:.80}")
    return Quotient(op, dim_from_json(numerator), dim_from_json(denominator))
