"""Simulates warp shuffles: which thread each thread reads from.

A shuffle group lies within one warp; a thread outside the block has no value to give.
"""

import numpy as np
from numpy.typing import NDArray

from retune.compiler.ir.tensor_core import WARP
from tests.support.simt.tags import Numbers


def missing(numbers: Numbers, threads: int) -> tuple[int, int] | None:
    """A thread that has come and one of its warp that has not, by number; None where all have.

    `numbers` are those of the threads that have come, `threads` how many a block has.
    """
    warps = _warp_starts(numbers, threads)
    starts, counts = np.unique(warps, return_counts=True)
    # The last warp of a block may have fewer threads.
    torn = counts < np.minimum(WARP, threads - starts % threads)
    if not torn.any():
        return None
    start = int(starts[np.argmax(torn)])
    here = numbers[warps == start]
    every = np.arange(start, start + min(WARP, threads - start % threads))
    return int(here[0]), int(np.setdiff1d(every, here)[0])


def sources(
    numbers: Numbers, threads: int, distance: int | None, width: int
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """For every thread the place in `numbers` of the one that it hears from, and whether the block has that one.

    `numbers` ascend and hold whole warps.
    """
    lane = numbers % threads % WARP
    inside = lane % width
    # A source beyond the group is the thread itself, as shfl.down has it.
    moved = -inside if distance is None else np.where(inside + distance < width, distance, 0)
    found = numbers % threads + moved < threads
    places = np.searchsorted(numbers, numbers + np.where(found, moved, 0))
    return places, found


def _warp_starts(numbers: Numbers, threads: int) -> Numbers:
    """The number of the first thread of each one's warp."""
    return np.asarray(numbers - numbers % threads % WARP)
