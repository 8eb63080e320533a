"""Decisions about symbolic extents: what decides them, and which numbers they hold for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd
from random import Random
from types import TracebackType

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.dims import Dim, active, dim_from_json, dim_to_json, is_certain, substitute

_MOST_NUMBERS = 200


@dataclass(frozen=True, slots=True)
class Guard:
    """A decision: that `dim` is zero (`is_zero`), or that it is positive, was found to be `holds`."""

    dim: Dim
    is_zero: bool
    """Whether the decision is about zero, not about the sign."""
    holds: bool

    @classmethod
    def of(cls, dim: object, is_zero: object, holds: object) -> "Guard":
        """The guard whose fields are this JSON. Raises: an error of `archive.DAMAGE` for anything else."""
        value = dim_from_json(dim)
        if not isinstance(value, Dim) or not isinstance(is_zero, bool) or not isinstance(holds, bool):
            raise TypeError(f"{dim!r:.80} is not guarded")
        return cls(value, is_zero, holds)

    def to_json(self) -> list[object]:
        return [dim_to_json(self.dim), self.is_zero, self.holds]

    @property
    def key(self) -> tuple[str, bool]:
        """What the decision is about. By structure: a symbol may be called "n + 1", which is how a sum is written."""
        return repr(dim_to_json(self.dim)), self.is_zero

    def fits(self, numbers: Mapping[str, int]) -> bool:
        """Whether `numbers` lead to the same decision."""
        try:
            number = substitute(self.dim, numbers)
        except ZeroDivisionError:
            return False
        return ((number == 0) if self.is_zero else (number > 0)) == self.holds

    def __str__(self) -> str:
        """Such as `512 > tokens`: what is subtracted stands on the right."""
        relation = ("==" if self.holds else "!=") if self.is_zero else (">" if self.holds else "<=")
        terms = self.dim.terms.items()
        sides = [Dim({atoms: abs(factor) for atoms, factor in terms if factor * sign > 0}) for sign in (1, -1)]
        return f" {relation} ".join(str(side) or "0" for side in sides)

    def rename(self, names: Mapping[str, str]) -> "Guard":
        """The guard with these names of its symbols."""
        dim = substitute(self.dim, {symbol: Dim.symbol(name) for symbol, name in names.items()})
        assert isinstance(dim, Dim), "symbols stay symbols"
        return replace(self, dim=dim)


class Assumptions:
    """The numbers that decide comparisons in this thread, inside `with`, and what was decided by them."""

    def __init__(self, numbers: Mapping[str, int], facts: Iterable[Guard] | None = None) -> None:
        """With `facts`, decisions known to hold, extents that these do not say to be equal are taken to be unequal,
        without a guard: for code that is right for equal extents, too, where it takes them to be unequal.
        """
        self.numbers = dict(numbers)
        self._facts = None if facts is None else {guard.key: guard.holds for guard in facts}
        self._guards: dict[tuple[str, bool], Guard] = {}
        self._before: Assumptions | None = None

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The decisions, each once."""
        return tuple(self._guards.values())

    def decide(self, dim: Dim, *, is_zero: bool) -> bool:
        """Whether `dim` is zero, or else positive, by the numbers. Raises: DefinitionError for an unknown symbol."""
        if is_zero and next(iter(dim.terms.values())) < 0:  # the same form for x - y and y - x
            dim = Dim({monomial: -factor for monomial, factor in dim.terms.items()})
        guard = Guard(dim, is_zero, True)
        if self._facts is not None:
            known = self._facts.get(guard.key)
            if known is not None or is_zero:
                return bool(known)
        try:
            number = substitute(dim, self.numbers)
        except KeyError as error:
            raise DefinitionError(f"nothing says which number the dimension {error} is") from None
        holds = bool(number == 0 if is_zero else number > 0)  # numbers may be those of NumPy
        self._guards.setdefault(guard.key, Guard(dim, is_zero, holds))
        return holds

    def __enter__(self) -> "Assumptions":
        # They nest: the outer assumptions decide again after the inner block.
        self._before = getattr(active, "assumptions", None)
        active.assumptions = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        active.assumptions = self._before


def strongest(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Guards that hold for the same numbers as all of `guards`: the strongest about each polynomial."""
    bounds: dict[str, tuple[Dim, int]] = {}
    zeros: dict[tuple[str, bool], Guard] = {}
    for guard in guards:
        if guard.is_zero:
            zeros[guard.key] = guard
            continue
        # dim > 0 is dim >= 1; not dim > 0 is -dim >= 0.
        polynomial, bound = _at_least(guard.dim if guard.holds else -guard.dim, 1 if guard.holds else 0)
        key = _key(polynomial)
        if key not in bounds or bounds[key][1] < bound:
            bounds[key] = polynomial, bound
    kept = (_positive(polynomial - bound + 1) for polynomial, bound in bounds.values())
    return (
        *(guard for guard in kept if guard is not None),
        *(guard for guard in zeros.values() if guard.holds or not _is_implied(guard.dim, bounds)),
    )


def exclusions(guards: Iterable[Guard], ranges: Mapping[str, tuple[int, int]]) -> list[Guard]:
    """The guards that exclude any of a seeded sample of the numbers in `ranges`: by symbol the ends, both included."""
    random = Random(0)
    ends = ({symbol: pair[end] for symbol, pair in ranges.items()} for end in (0, 1))
    # Log-uniform: sizes at which guards differ are small.
    drawn = (
        {symbol: low - 1 + int((high - low + 1) ** random.random()) for symbol, (low, high) in ranges.items()}
        for _ in range(_MOST_NUMBERS)
    )
    sample = [*ends, *drawn]
    return [guard for guard in guards if not all(map(guard.fits, sample))]


def _at_least(dim: int, least: int) -> tuple[Dim, int]:
    """The polynomial without constant and common factor, and its bound, that say that `dim >= least`."""
    assert isinstance(dim, Dim), "a guard is about symbols"
    constant = dim.terms.get((), 0)
    factor = gcd(*(number for monomial, number in dim.terms.items() if monomial))
    polynomial = Dim({monomial: number // factor for monomial, number in dim.terms.items() if monomial})
    return polynomial, -((constant - least) // factor)


def _positive(value: int) -> Guard | None:
    """The guard that `value` is positive; None if it always is."""
    return None if not isinstance(value, Dim) or is_certain(value) else Guard(value, False, True)


def _is_implied(dim: Dim, bounds: dict[str, tuple[Dim, int]]) -> bool:
    """Whether a bound says that `dim` is positive, or negative."""
    for signed in (dim, -dim):
        polynomial, least = _at_least(signed, 1)
        _, bound = bounds.get(_key(polynomial), (polynomial, least - 1))
        if bound >= least:
            return True
    return False


def _key(dim: Dim) -> str:
    return repr(dim_to_json(dim))
