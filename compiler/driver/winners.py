"""In: a task's fastest records, or guesses where there are none. Out: the program that serves it.

Always: it was built again, gave the right answer and was the fastest in a fresh process, next to the untuned program.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.cost_model.random import RandomModel
from compiler.measure.builder import LocalBuilder
from compiler.measure.record import MeasureRecord, MeasureStatus
from compiler.measure.results import MeasureResult
from compiler.measure.runner import LocalRunner
from compiler.schedule.default import default_steps
from compiler.schedule.steps import load_steps
from compiler.schedule.task import SearchTask
from compiler.search.policy import SketchPolicy

GUESSES = 4
"""How many programs are tried for a task that no record knows."""
LOOKS = 3
"""How often programs are timed again when no record is faster than the untuned program."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A program that no run has measured: one that the search would try first. It has no record."""

    steps: str
    record_id: str = ""


Program = MeasureRecord | Guess


def first_guesses(task: SearchTask) -> tuple[Guess, ...]:
    """Programs for a task that the budget did not reach, by first principles alone."""
    candidates = SketchPolicy(task, RandomModel()).ask(GUESSES, 0)
    return tuple(Guess(candidate.steps_text) for candidate in candidates)


@dataclass(frozen=True, slots=True)
class Winner:
    """What serves a task: `program`, or the default schedule when that is None. Times are seconds per call, infinite
    where the program failed.

    `rejected` says of every program that failed why it does not serve.
    """

    task_key: str
    name: str
    program: Program | None
    default_seconds: float
    seconds: float
    rejected: tuple[str, ...]


def choose_winner(
    task: SearchTask, programs: Sequence[Program], builder: LocalBuilder, runner: LocalRunner
) -> Winner:
    """Build the untuned program and `programs` once more, time them, and take the fastest right one.

    A program's time is its fastest repeat. Should the untuned program win, all are timed again, up to `LOOKS` times
    in all: a disturbance of the machine must not throw a good program away.
    Raises: MeasureError when the workers cannot work at all.
    """
    builds = builder.build(task, [tuple(default_steps(task.dag)), *(load_steps(program.steps) for program in programs)])
    looks: list[list[MeasureResult]] = []
    seconds: list[float] = []
    for _ in range(LOOKS):
        looks.append(runner.run(task, builds))
        seconds = [_fastest(results) for results in zip(*looks, strict=True)]
        if not programs or min(seconds[1:]) < seconds[0]:
            break
    best = min(range(len(builds)), key=lambda index: seconds[index])
    chosen = programs[best - 1] if best > 0 else None
    rejected = tuple(
        f"{program.record_id or 'a guess'}: {failure}"
        for program, *results in zip(programs, *(look[1:] for look in looks), strict=True)
        if (failure := _failure(results))
    )
    return Winner(task.workload_key, task.name, chosen, seconds[0], seconds[best], rejected)


def _fastest(results: Sequence[MeasureResult]) -> float:
    """The fastest repeat of all looks at a program; infinite when it ever failed."""
    return math.inf if _failure(results) else min(cost for result in results for cost in result.costs)


def _failure(results: Sequence[MeasureResult]) -> str:
    """Why a program failed, in one line; empty when it never did."""
    failed = [result for result in results if result.status is not MeasureStatus.OK]
    return f"{failed[0].status.name}: {failed[0].error.strip().partition(chr(10))[0]}" if failed else ""
