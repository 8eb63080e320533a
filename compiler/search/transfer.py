"""Programs of similar tasks, fitted to the sizes of a task: for a warm start, or in place of a search.

Inner tile levels stay as near as divisors allow, the outermost takes up the difference.

Tasks are similar if their tensors have the same ranks; their distance is the difference of their sizes. A program fits
if a sketch of the task consists of the same steps.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, log2

import numpy as np

from retune.compiler.core.errors import ScheduleError
from retune.compiler.measure.record import TaskProgram
from retune.compiler.schedule.steps import Split, Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.factorize import divisors
from retune.compiler.search.genome import Rows
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.sketch import derive_sketches, rules_of
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import spaces_of

SHARED = 3
"""Number of its fastest programs that a task shares with similar tasks."""

ADVICE = 24
"""Number of programs of similar tasks that warm a task's search."""

_TRIED = 4
"""Number of the most similar programs that are tried, until one fits."""


def fastest(programs: Iterable[TaskProgram]) -> tuple[TaskProgram, ...]:
    """The programs that a task shares; the last time counts for a repeated program."""
    latest = {program.steps: program for program in programs if program.seconds < inf}
    return tuple(sorted(latest.values(), key=lambda program: (program.seconds, program.steps))[:SHARED])


@lru_cache(maxsize=4096)
def distance(key: str, other_key: str) -> float:
    """Difference of the sizes of two tasks in doublings; inf for other ranks, or keys of no compute graph."""
    shapes, other_shapes = _shapes(key), _shapes(other_key)
    if not shapes or [len(shape) for shape in shapes] != [len(shape) for shape in other_shapes]:
        return inf
    # Manhattan distance of the logarithms of sizes: good tile sizes depend on ratios of extents, not on differences.
    sizes = zip(
        (size for shape in shapes for size in shape), (size for shape in other_shapes for size in shape), strict=True
    )
    return sum(abs(log2(max(a, 1)) - log2(max(b, 1))) for a, b in sizes)


def k_nearest(task_key: str, programs: Iterable[TaskProgram], count: int) -> tuple[TaskProgram, ...]:
    """At most `count` programs of the most similar tasks, round robin over these; none of the task itself."""
    ranked: dict[str, list[TaskProgram]] = {}
    for program in sorted(programs, key=lambda program: (program.seconds, program.steps)):
        if program.task_key != task_key and distance(task_key, program.task_key) < inf:
            ranked.setdefault(program.task_key, []).append(program)
    order = sorted(ranked, key=lambda key: (distance(task_key, key), key))
    ranks = max((len(programs_of_task) for programs_of_task in ranked.values()), default=0)
    # Round robin over the tasks by rank, so that one similar task with many programs does not crowd out the others.
    chosen = [ranked[key][rank] for rank in range(ranks) for key in order if rank < len(ranked[key])]
    return tuple(chosen[:count])


def refit(space: SketchSpace, steps: Sequence[Step]) -> Rows | None:
    """The row (G,), not in normal form, that is most similar to `steps` of other sizes; None for another structure."""
    splits = {split.step: split for split in space.layout.splits}
    if len(steps) < len(space.sketch):
        return None
    changed = list(steps)
    for number, split in splits.items():
        template, step = space.sketch[number], steps[number]
        if not isinstance(template, Split) or not isinstance(step, Split) or len(template.lengths) != len(step.lengths):
            return None
        lengths = [length for length in step.lengths if isinstance(length, int) and length > 0]
        if len(lengths) != len(step.lengths):
            return None
        fitted = fit(split.extent, lengths, space.options.max_innermost)
        changed[number] = replace(step, extent=template.extent, lengths=fitted)
    row = space.row_of(changed)
    return None if row is None else np.asarray(row)


def fit(extent: int, lengths: Sequence[int], max_innermost: int) -> tuple[int, ...]:
    """Lengths whose product divides `extent`, each as near as possible to `lengths`; the innermost is fitted first."""
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


def transfer_program(task: SearchTask, programs: Iterable[TaskProgram]) -> tuple[Step, ...] | None:
    """The steps of the nearest program that fits; None when none does, or no task among them is alike."""
    close = k_nearest(task.workload_key, programs, _TRIED)
    if not close:
        return None
    context = SketchContext(task.hardware, SearchOptions())
    # Fitted to a sketch of this task: lengths are set for these extents, and the result is legal by construction.
    spaces = spaces_of(task.dag, context, derive_sketches(task.dag, context, rules_of(context)))
    for program in close:
        try:
            steps = load_steps(program.steps)
        except ScheduleError:
            continue
        for space in spaces:
            fitted = _fit(space, steps)
            if fitted is not None:
                return fitted
    return None


def _fit(space: SketchSpace, steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
    row = refit(space, steps)
    if row is None:
        return None
    for _, group in space.groups(np.asarray(row)[None]):
        if space.legal(group).all():
            return space.steps(group.rows[0])
    return None
