"""How many outermost loops of a stage run in parallel, for arrays of programs.

Each row is one program.
"""

from collections.abc import Sequence

import numpy as np

from retune.compiler.schedule.state import Number
from retune.compiler.search.genome import Mask, Rows


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
