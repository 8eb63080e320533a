"""Chooses at most a few programs for a kernel with symbolic extents, and the sizes of calls that each of them is for.

The times of programs at each shape of a task decide. The result is steps as in `schedule/steps/block.py`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf, isqrt

from retune.compiler.ir.dims import Dim, substitute
from retune.compiler.ir.guards import Assumptions
from retune.compiler.schedule.axis_classes import SymbolicProgram
from retune.compiler.schedule.steps import SizeLimit, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.block_sizes import axis_of

MOST_PROGRAMS = 3
"""Programs of a kernel: each is more code."""
_GAIN = 0.98
"""Another program is worth its code if it takes at most this share of the time without it."""


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """A program with its seconds at each shape of a task, and the layout of its constants."""

    steps: tuple[Step, ...]
    seconds: tuple[float, ...]
    layout: Hashable = None


@dataclass(frozen=True, slots=True)
class _Choice:
    """Programs in the order of sizes, with a limit between two of them, and their expected time."""

    seconds: float
    programs: tuple[TimedProgram, ...]
    limits: tuple[SizeLimit, ...] = ()


def choose_by_size(task: SearchTask, programs: Sequence[TimedProgram], most: int = MOST_PROGRAMS) -> tuple[Step, ...]:
    """The steps of the kernel with the least expected time of a call, made of at most `most` of the programs."""
    best = _Choice(inf, ())
    for layout in dict.fromkeys(program.layout for program in programs):
        own = [program for program in programs if program.layout == layout]
        choice = _cut(task, own, SizeLimit(0, 0, 0), [0] * len(task.shapes), ())
        for count in range(1, most):
            better = min(
                (
                    _cut(task, own, limit, sizes, cuts)
                    for limit, sizes in _axes(task)
                    for cuts in combinations(sorted(set(sizes))[1:], count)
                ),
                key=lambda cut: cut.seconds,
                default=choice,
            )
            choice = better if better.seconds < _GAIN * choice.seconds else choice
        best = min(best, choice, key=lambda cut: cut.seconds)
    limits: list[tuple[Step, ...]] = [(limit,) for limit in best.limits]
    parts = zip((program.steps for program in best.programs), [*limits, ()], strict=False)
    return tuple(step for steps, limit in parts for step in (*steps, *limit))


def _axes(task: SearchTask) -> list[tuple[SizeLimit, list[int]]]:
    """A limit on each symbolic axis, for any size, and the extents of the axis at the task's shapes."""
    with Assumptions({}, ()):  # as `lower_symbolic`
        program = SymbolicProgram.of((*task.dag.inputs, *task.dag.outputs), keeps_rows=True)
        return [
            (SizeLimit(*axis_of(program, known), 0), [substitute(known.extent, shape.sizes) for shape in task.shapes])
            for known in program.classes
            if isinstance(known.extent, Dim)
        ]


def _cut(
    task: SearchTask, programs: Sequence[TimedProgram], axis: SizeLimit, sizes: Sequence[int], cuts: Sequence[int]
) -> _Choice:
    """The best program for the sizes before each of the `cuts`, which are sizes of the sample, and for all others."""
    chosen, seconds = [], 0.0
    for first, end in pairwise((0, *cuts, inf)):
        inside = [number for number, size in enumerate(sizes) if first <= size < end]
        times = [sum(task.shapes[number].weight * own.seconds[number] for number in inside) for own in programs]
        seconds += min(times)
        chosen.append(programs[times.index(min(times))])
    # A limit is halfway, in doublings, between two sizes of the sample.
    limits = [isqrt(cut * max(size for size in sizes if size < cut)) for cut in cuts]
    return _Choice(seconds, tuple(chosen), tuple(SizeLimit(axis.stage, axis.iter, limit) for limit in limits))
