"""Removes guards that other guards, or the bounds of symbols, imply, and finds those that exclude sizes."""

from collections.abc import Iterable, Mapping
from math import gcd
from random import Random

from retune.compiler.ir.dims import Dim, Guard, dim_to_json, is_certain

_MOST_NUMBERS = 200


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
