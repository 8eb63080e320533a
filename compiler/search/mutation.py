"""Mutates genome rows of one sketch by one small move each, and lists all rows that differ by such a move.

The parts of every split keep their product; the input does not change. A move carries one prime factor from one part of
a split to another, or gives a single column another value. The list of neighbors is deterministic and excludes the row
itself: hill climbing along such moves ends a search, so that programs near the best one that were never sampled are
rated before the budget ends.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from retune.compiler.search.factorize import divisors, prime_factors
from retune.compiler.search.genome import Layout, Rows, SplitColumns

TILE, UNROLL, PLACEMENT, PARALLEL, VECTOR, WIDTH = "tile", "unroll", "placement", "parallel", "vector", "width"
CROSSOVER, SAMPLE, MEASURED = "crossover", "sample", "measured"
NEIGHBOR, TRANSFER = "neighbour", "transfer"  # as records have it
MOVES = (TILE, UNROLL, PLACEMENT, PARALLEL, VECTOR, WIDTH)


def move_tile_factors(rng: np.random.Generator, rows: Rows, layout: Layout, max_innermost: int) -> Rows:
    """In every row, move a divisor from one part of a split to another part of it.

    A row whose drawn split cannot move (a prime extent above the innermost limit may be stuck) stays the same.
    """
    movable = [split for split in layout.splits if split.extent > 1]
    children = rows.copy()
    if not movable or not len(rows):
        return children
    drawn = rng.integers(len(movable), size=len(rows))
    for number, split in enumerate(movable):
        chosen = np.flatnonzero(drawn == number)
        if len(chosen):
            children[chosen, split.columns] = _move_within(rng, rows[chosen, split.columns], split, max_innermost)
    return children


def _move_within(rng: np.random.Generator, parts: Rows, split: SplitColumns, max_innermost: int) -> Rows:
    """Move one divisor in each row of a split's parts: first draw source and destination, then the divisor."""
    count, levels = parts.shape
    factors = np.array(divisors(split.extent)[1:], dtype=np.int64)
    leaves = parts[:, :, None] % factors == 0
    fits = np.ones((count, levels, len(factors)), dtype=np.bool_)
    # Only the innermost part is bounded (`max_innermost_split_factor` in Ansor).
    fits[:, -1, :] = parts[:, -1:] * factors <= max_innermost
    possible = leaves[:, :, None, :] & fits[:, None, :, :] & ~np.eye(levels, dtype=np.bool_)[None, :, :, None]
    pairs = possible.any(axis=3).reshape(count, levels * levels)
    # The argmax of independent uniform draws over the possible pairs is a uniform choice among them; 1 - random is
    # never 0, so an impossible pair cannot win. It handles all rows in one NumPy call.
    pair = np.argmax(pairs * (1.0 - rng.random(pairs.shape)), axis=1)
    source, target = pair // levels, pair % levels
    row = np.arange(count)
    options = possible[row, source, target]
    factor = factors[np.argmax(options * (1.0 - rng.random(options.shape)), axis=1)]
    factor = np.where(options.any(axis=1), factor, 1)
    moved = parts.copy()
    moved[row, source] //= factor
    moved[row, target] *= factor
    return moved


def redraw_unroll(rng: np.random.Generator, rows: Rows, layout: Layout, limits: tuple[int, ...]) -> Rows:
    """Give one unroll column of every row a new limit; a different limit if there is more than one."""
    children = rows.copy()
    if layout.unroll:
        columns = np.array([column for _, column in layout.unroll])[rng.integers(len(layout.unroll), size=len(rows))]
        _redraw(rng, children, columns, np.array(limits, dtype=np.int64))
    return children


def redraw_placement(rng: np.random.Generator, rows: Rows, layout: Layout, placements: Rows) -> Rows:
    """Move the small producers of every row to another of `placements`."""
    children = rows.copy()
    _redraw(rng, children, np.full(len(rows), layout.placement), placements)
    return children


def redraw_parallel(rng: np.random.Generator, rows: Rows, layout: Layout, deepest: int) -> Rows:
    """Give one stage of every row another parallel depth, at most `deepest`; normalization lowers impossible depths."""
    children = rows.copy()
    if layout.parallel:
        drawn = rng.integers(len(layout.parallel), size=len(rows))
        columns = np.array([column for _, column in layout.parallel])[drawn]
        _redraw(rng, children, columns, np.arange(deepest + 1, dtype=np.int64))
    return children


def flip_vector(rng: np.random.Generator, rows: Rows, layout: Layout) -> Rows:
    """Switch the vector loop of one stage of every row on or off."""
    children = rows.copy()
    if layout.vector:
        columns = np.array([column for _, column in layout.vector])[rng.integers(len(layout.vector), size=len(rows))]
        row = np.arange(len(rows))
        children[row, columns] = 1 - children[row, columns]
    return children


def redraw_width(rng: np.random.Generator, rows: Rows, layout: Layout) -> Rows:
    """Give one width of every row another of its choices."""
    children = rows.copy()
    if layout.widths:
        drawn = rng.integers(len(layout.widths), size=len(rows))
        for number, width in enumerate(layout.widths):
            chosen = np.flatnonzero(drawn == number)
            part = children[chosen]
            _redraw(rng, part, np.full(len(chosen), width.column), np.array(width.choices, dtype=np.int64))
            children[chosen] = part
    return children


def exchange_columns(rng: np.random.Generator, rows: Rows, mates: Rows, layout: Layout) -> Rows:
    """Crossover: every column group of a child comes from its first parent or, with probability 1/2, from its mate."""
    children = rows.copy()
    for group in layout.groups():
        # Uniform crossover over column groups: columns of one split must stay together, since their product is the
        # extent.
        is_mate = rng.random(len(rows)) < 0.5
        children[is_mate, group] = mates[is_mate, group]
    return children


def _redraw(rng: np.random.Generator, rows: Rows, columns: Rows, values: Rows) -> None:
    """Overwrite rows[i, columns[i]] by another of `values`, uniformly; a value not among them may become any."""
    if len(values) < 2 or not len(rows):
        return
    row = np.arange(len(rows))
    different = values[None, :] != rows[row, columns][:, None]
    choice = np.argmax(different * (1.0 - rng.random(different.shape)), axis=1)
    rows[row, columns] = values[choice]


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
