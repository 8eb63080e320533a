"""Samples ordered factorizations of a loop extent uniformly, in arrays.

Every product equals the extent.
"""

from functools import lru_cache
from math import comb, prod

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=4096)
def prime_factors(extent: int) -> tuple[tuple[int, int], ...]:
    """The (prime, exponent) pairs of a positive number, ascending."""
    factors: list[tuple[int, int]] = []
    remainder, prime = extent, 2
    # Trial division: extents are small, and results are cached.
    while prime * prime <= remainder:
        exponent = 0
        while remainder % prime == 0:
            remainder //= prime
            exponent += 1
        if exponent:
            factors.append((prime, exponent))
        prime += 1
    if remainder > 1:
        factors.append((remainder, 1))
    return tuple(factors)


@lru_cache(maxsize=4096)
def divisors(extent: int) -> tuple[int, ...]:
    products = [1]
    for prime, exponent in prime_factors(extent):
        products = [base * prime**power for base in products for power in range(exponent + 1)]
    return tuple(sorted(products))


_ROW_TILES = range(4, 17)
"""Row counts of a register tile."""
_LANES = 8
"""A vector loop should be a multiple of this."""
_WHOLE = 16
"""Extents up to this are tiles themselves."""
_SHORT, _FEW = 31, range(4, 9)
"""Extents up to `_SHORT` are rounded up to a multiple of any of `_FEW`: less waste than whole vectors of rows."""


def covering(extent: int, max_innermost: int, *, is_vector: bool) -> int:
    """The number whose divisors are the tile lengths of a loop: `extent` if a divisor makes a good tile, otherwise
    (such as for a prime) the next number with many divisors. Surplus iterations are skipped. If `is_vector`, the
    innermost part may become the vector loop, and is at most `max_innermost`.
    """
    # A prime extent such as 197 has no tile but 1 and itself. Rounding it up to a multiple of a vector wastes a few
    # iterations and makes good tiles possible; short loops stay, because they are tiles themselves.
    useful = range(_LANES, max_innermost + 1, _LANES) if is_vector else _ROW_TILES
    if extent <= (max_innermost if is_vector else _WHOLE) or any(extent % length == 0 for length in useful):
        return extent
    if not is_vector and extent <= _SHORT:
        return next(longer for longer in range(extent, 2 * extent) if any(longer % length == 0 for length in _FEW))
    # At most 15 iterations are wasted where the loop is long or its vectors want it, at most 7 otherwise.
    step = 2 * _LANES if is_vector or extent > 8 * _ROW_TILES[-1] else _LANES
    return -(-extent // step) * step


def _ways(extent: int, parts: int) -> int:
    """Number of ordered products of `parts` numbers that equal `extent`."""
    # Stars and bars for each prime: its exponent is distributed over the parts independently of the others.
    return prod(comb(exponent + parts - 1, parts - 1) for _, exponent in prime_factors(extent))


def sample_factorizations(rng: np.random.Generator, count: int, extent: int, levels: int, max_last: int) -> Ints:
    """Draw `count` factorizations uniformly, without listing them.

    Returns an int64 array (count, levels + 1): column 0 is the outermost part, the others are the tile lengths; each
    row's product is `extent` and the last column is at most `max_last`.
    """
    choices = [last for last in divisors(extent) if last <= max_last]
    # Weighting each innermost length by the number of factorizations that end in it makes the two-step draw uniform
    # over all factorizations, although the bound on the innermost length excludes some.
    weights = np.array([_ways(extent // last, levels) for last in choices], dtype=np.float64)
    lasts = np.array(choices, dtype=np.int64)[rng.choice(len(choices), size=count, p=weights / weights.sum())]
    parts = np.ones((count, levels + 1), dtype=np.int64)
    parts[:, -1] = lasts
    for prime, exponent in prime_factors(extent):
        left = exponent - _exponents(lasts, prime, exponent)
        # Rows with equal exponents are drawn together, in one call of NumPy.
        for size in np.unique(left[left > 0]):
            rows = np.flatnonzero(left == size)
            parts[rows, :-1] *= prime ** _compositions(rng, len(rows), int(size), levels)
    return parts


def _exponents(values: Ints, prime: int, most: int) -> Ints:
    """How often `prime` divides each value, at most `most` times."""
    powers = np.array([prime**power for power in range(1, most + 1)], dtype=np.int64)
    return np.asarray(np.count_nonzero(values[:, None] % powers == 0, axis=1), dtype=np.int64)


def _compositions(rng: np.random.Generator, count: int, total: int, parts: int) -> Ints:
    """`count` uniform compositions of `total` into `parts` terms of at least 0, shape (count, parts)."""
    if parts == 1:
        return np.full((count, 1), total, dtype=np.int64)
    positions = total + parts - 1
    bars = np.sort(np.argsort(rng.random((count, positions)), axis=1)[:, : parts - 1], axis=1)
    edges = np.concatenate([np.full((count, 1), -1), bars, np.full((count, 1), positions)], axis=1)
    return (np.diff(edges, axis=1) - 1).astype(np.int64)
