"""The genome of a sketch's programs: a `Layout` that names the columns of an int64 matrix, one row per program.

A row holds everything that distinguishes a program from others of its sketch. Column groups: the parts of every split
(outermost first; their product is fixed), the placement of the small producers, for each stage the parallel depth, the
vector flag and the unroll limit, and on a GPU the widths of vector accesses and of thread blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retune.compiler.schedule.state import Number

Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]

_MIX = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, odd: Knuth's multiplicative hashing, as in SplitMix64."""


@dataclass(frozen=True, slots=True)
class SplitColumns:
    """The columns `start` … `start + parts - 1` hold the parts of the split that step `step` of the sketch makes. Their
    product is `extent`, which may exceed the loop's extent, see `factorize.covering`.
    """

    step: int
    extent: int
    start: int
    parts: int

    @property
    def columns(self) -> slice:
        """All parts, outermost first."""
        return slice(self.start, self.start + self.parts)

    @property
    def lengths(self) -> slice:
        """The parts that the step stores: all but the outermost."""
        return slice(self.start + 1, self.start + self.parts)


@dataclass(frozen=True, slots=True)
class WidthColumn:
    """The column `column` holds the inner length of the two-part split that step `step` of the sketch makes, one of
    `choices`. It need not divide the extent.
    """

    step: int
    column: int
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column of a genome matrix means what; stages are numbered as in the finished sketch."""

    splits: tuple[SplitColumns, ...]
    placement: int
    parallel: tuple[tuple[int, int], ...]
    vector: tuple[tuple[int, int], ...]
    unroll: tuple[tuple[int, int], ...]
    width: int
    widths: tuple[WidthColumn, ...] = ()

    @classmethod
    def of(
        cls,
        splits: tuple[tuple[int, int, int], ...],
        stages: tuple[int, ...],
        unrolled: tuple[int, ...],
        widths: tuple[tuple[int, tuple[int, ...]], ...] = (),
    ) -> "Layout":
        """Lay out the columns.

        `splits` holds (step number, extent, parts), `stages` every stage whose loops may be parallel or vectors,
        `unrolled` those with a reduction, `widths` (step number, choices).
        """
        columns: list[SplitColumns] = []
        start = 0
        for step, extent, parts in splits:
            columns.append(SplitColumns(step, extent, start, parts))
            start += parts
        parallel = tuple((stage, start + 1 + index) for index, stage in enumerate(stages))
        vector = tuple((stage, start + 1 + len(stages) + index) for index, stage in enumerate(stages))
        unroll = tuple((stage, start + 1 + 2 * len(stages) + index) for index, stage in enumerate(unrolled))
        end = start + 1 + 2 * len(stages) + len(unrolled)
        width_columns = tuple(WidthColumn(step, end + index, choices) for index, (step, choices) in enumerate(widths))
        return cls(tuple(columns), start, parallel, vector, unroll, end + len(width_columns), width_columns)

    def groups(self) -> tuple[slice, ...]:
        """The column ranges that crossover exchanges as a unit: a split, or a single other column."""
        single = (slice(column, column + 1) for column in range(self.placement, self.width))
        return (*(split.columns for split in self.splits), *single)

    def tiling(self, rows: Rows) -> Rows:
        """The columns of the tile sizes alone."""
        return rows[:, : self.placement]


def keys_of(space: int, rows: Rows) -> Keys:
    """A 64-bit key per row; equal rows of one space have equal keys. Shape (B,)."""
    keys = np.full(len(rows), (space * 2 + 1) * _MIX & (2**64 - 1), dtype=np.uint64)
    for column in rows.astype(np.uint64).T:
        keys = (keys ^ column) * np.uint64(_MIX)
        # Multiplication carries upwards only: the shift brings the high bits down again.
        keys ^= keys >> np.uint64(29)
    return keys


def cumulative(extents: Sequence[Number | None], count: int) -> Rows:
    """Products of the first 0 … D extents, shape (count, D + 1)."""
    pieces = np.ones((count, len(extents) + 1), dtype=np.int64)
    for number, extent in enumerate(extents):
        pieces[:, number + 1] = 1 if extent is None else extent
    return np.cumprod(pieces, axis=1)


def random_true(rng: np.random.Generator, flags: Mask) -> Rows:
    """A random true column of every row, -1 where there is none; (B, D) → (B,)."""
    if not flags.shape[1]:
        return np.full(len(flags), -1, dtype=np.int64)
    # The argmax of uniform draws is a uniform choice among the true columns; 1 - random is never 0.
    drawn = np.argmax(flags * (1.0 - rng.random(flags.shape)), axis=1)
    return np.where(flags.any(axis=1), drawn, -1).astype(np.int64)


def settled_depth(extents: Sequence[Number], depths: Rows) -> Rows:
    """Leave loops of extent 1 at the end of the parallel loops out: they change nothing."""
    settled = np.zeros_like(depths)
    for number, extent in enumerate(extents):
        real = (np.asarray(extent) > 1) & (depths > number)
        settled = np.where(real, number + 1, settled)
    return settled
