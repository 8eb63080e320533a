"""The neighborhood of a program: all genome rows that differ by one small move, for local search.

A move carries one prime factor from one part of a split to another, or gives a single column another value. The list is
deterministic and excludes the row itself. Hill climbing along such moves ends a search, so that programs near the best
one that were never sampled are rated before the budget ends.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from retune.compiler.search.factorize import prime_factors
from retune.compiler.search.genome import Layout, Rows


def neighbors(
    row: Rows, layout: Layout, placements: int, deepest: int, unroll_limits: tuple[int, ...], max_innermost: int
) -> Rows:
    """All neighbors (N, G) of a row (G,), not in normal form."""
    rows = [*_of_splits(row, layout, max_innermost)]
    for column, values in _columns(layout, placements, deepest, unroll_limits):
        for value in values:
            if value != row[column]:
                changed = row.copy()
                changed[column] = value
                rows.append(changed)
    return np.array(rows, dtype=np.int64).reshape(-1, layout.width)


def _of_splits(row: Rows, layout: Layout, max_innermost: int) -> Iterator[Rows]:
    for split in layout.splits:
        columns = range(split.start, split.start + split.parts)
        for source, target in permutations(columns, 2):
            # Primes suffice: a larger move is several of these.
            for prime, _ in prime_factors(split.extent):
                fits = target < columns[-1] or int(row[target]) * prime <= max_innermost
                if fits and row[source] % prime == 0:
                    changed = row.copy()
                    changed[source] //= prime
                    changed[target] *= prime
                    yield changed


def _columns(
    layout: Layout, placements: int, deepest: int, unroll_limits: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The single columns and their possible values."""
    yield layout.placement, tuple(range(placements))
    for _, column in layout.parallel:
        yield column, tuple(range(deepest + 1))
    for _, column in layout.vector:
        yield column, (0, 1)
    for _, column in layout.unroll:
        yield column, unroll_limits
    for width in layout.widths:
        yield width.column, width.choices
