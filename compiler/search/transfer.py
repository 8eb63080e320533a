"""Warm start from similar tasks: their best programs, fitted to the sizes of a task.

Inner tile levels stay as near as divisors allow, the outermost takes up the difference.

Two tasks are alike here when their tensors have as many dimensions; how far apart they are is how much their sizes
differ. Whether a program fits is decided by its steps: a sketch of the task must consist of the same ones.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, log2

import numpy as np

from retune.compiler.measure.record import BestProgram
from retune.compiler.schedule.steps import Split, Step
from retune.compiler.search.factorize import divisors
from retune.compiler.search.genome import Rows
from retune.compiler.search.space import SketchSpace

SHARED = 3
"""So many of its fastest programs a task shares with those like it."""

ADVICE = 24
"""So many programs of similar tasks warm a task's search."""


def fastest(programs: Iterable[BestProgram]) -> tuple[BestProgram, ...]:
    """What a task shares of its programs; of one that is named more than once the last time counts."""
    known = {one.steps: one for one in programs if one.seconds < inf}
    return tuple(sorted(known.values(), key=lambda one: (one.seconds, one.steps))[:SHARED])


@lru_cache(maxsize=4096)
def distance(one: str, other: str) -> float:
    """How far apart the sizes of two tasks are, in doublings, by their workload keys; inf where dimensions differ in
    number, or where a key is none of a compute graph's own.
    """
    mine, theirs = _shapes(one), _shapes(other)
    if not mine or [len(shape) for shape in mine] != [len(shape) for shape in theirs]:
        return inf
    # Manhattan distance of the logarithms of sizes: good tile sizes depend on ratios of extents, not on differences.
    sizes = zip((size for shape in mine for size in shape), (size for shape in theirs for size in shape), strict=True)
    return sum(abs(log2(max(a, 1)) - log2(max(b, 1))) for a, b in sizes)


def k_nearest(task_key: str, programs: Iterable[BestProgram], count: int) -> tuple[BestProgram, ...]:
    """At most `count` programs of the most similar tasks, another task's each in turn; none of the task itself."""
    ranked: dict[str, list[BestProgram]] = {}
    for one in sorted(programs, key=lambda each: (each.seconds, each.steps)):
        if one.task_key != task_key and distance(task_key, one.task_key) < inf:
            ranked.setdefault(one.task_key, []).append(one)
    order = sorted(ranked, key=lambda key: (distance(task_key, key), key))
    ranks = max((len(found) for found in ranked.values()), default=0)
    # Round robin over the tasks by rank, so that one similar task with many programs does not crowd out the others.
    chosen = [ranked[key][rank] for rank in range(ranks) for key in order if rank < len(ranked[key])]
    return tuple(chosen[:count])


def refitted(space: SketchSpace, steps: Sequence[Step]) -> Rows | None:
    """The row (G,), not in normal form, of the program of this space that is most like `steps`, which were made for
    other sizes; None when they are of another structure.
    """
    splits = {split.step: split for split in space.layout.splits}
    if len(steps) < len(space.sketch):
        return None
    changed = list(steps)
    for number, split in splits.items():
        mine, given = space.sketch[number], steps[number]
        if not isinstance(mine, Split) or not isinstance(given, Split) or len(mine.lengths) != len(given.lengths):
            return None
        lengths = [length for length in given.lengths if isinstance(length, int) and length > 0]
        if len(lengths) != len(given.lengths):
            return None
        fitted = fit(split.extent, lengths, space.options.max_innermost)
        changed[number] = replace(given, extent=mine.extent, lengths=fitted)
    row = space.row_of(changed)
    return None if row is None else np.asarray(row)


def fit(extent: int, lengths: Sequence[int], max_innermost: int) -> tuple[int, ...]:
    """Lengths that divide `extent` together, each as near as can be to the given one; the innermost is fitted first."""
    fitted: list[int] = []
    left = extent
    for number, length in enumerate(reversed(lengths)):
        possible = [divisor for divisor in divisors(left) if number or divisor <= max_innermost]
        # Greedy from the innermost length outward: it decides vector loads and the register tile. Nearness is measured
        # in doublings.
        chosen = min(possible, key=lambda divisor: (abs(log2(divisor) - log2(length)), divisor))
        fitted.append(chosen)
        left //= chosen
    return tuple(reversed(fitted))


@lru_cache(maxsize=4096)
def _shapes(key: str) -> tuple[tuple[int, ...], ...]:
    try:
        _, *shapes = json.loads(key)
        return tuple(tuple(int(size) for size in shape) for shape in shapes)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ()
