"""In: a task's fastest records, or guesses where there are none. Out: the program that serves it, and of several tasks
that compute the same result the one that does.

Always: it was built again, was the fastest when all took turns, the untuned program among them, and gave the right
answer in a fresh process after that.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.cost_model.random import RandomModel
from compiler.measure.measurer import Builder, Runner
from compiler.measure.record import MeasureRecord, MeasureStatus
from compiler.measure.results import BuildResult, MeasureResult
from compiler.schedule.default_gpu import untuned_steps
from compiler.schedule.steps import load_steps
from compiler.schedule.task import SearchTask
from compiler.search import mutation
from compiler.search.options import SearchOptions
from compiler.search.policy import SketchPolicy
from compiler.search.transfer import Relative, nearest

GUESSES = 4
"""How many programs are tried for a task that no record knows."""
_TRANSFERRED = 0.5
"""Which share of these may be fitted programs of similar tasks."""
REACH = 2.0
"""Programs slower than so many times the fastest do not take part in the comparison."""
CLOSE = 1.2
"""A way to compute a layer whose record is so many times slower than that of the fastest way is not timed again."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A program that no run has measured: one that the search would try first. It has no record of its own;
    `transferred` says that it is a record's of a similar task, fitted to this one's sizes.
    """

    steps: str
    record_id: str = ""
    transferred: bool = False
    seconds: float = math.inf


Program = MeasureRecord | Guess


def first_guesses(task: SearchTask, known: Iterable[MeasureRecord] = ()) -> tuple[Guess, ...]:
    """Programs for a task that the budget did not reach: by first principles, and up to half of them those of the most
    similar tasks among `known`, the best records of other tasks.
    """
    policy = SketchPolicy(task, RandomModel(), SearchOptions(transfer_ratio=_TRANSFERRED))
    relatives = (Relative(one.task_key, one.steps, one.seconds) for one in known if one.costs)
    policy.advise([one.steps_text for one in nearest(task.workload_key, relatives, GUESSES)])
    candidates = policy.ask(GUESSES, 0)
    return tuple(Guess(one.steps_text, transferred=one.mutation == mutation.TRANSFER) for one in candidates)


@dataclass(frozen=True, slots=True)
class Winner:
    """What serves a task: `program`, or the default schedule when that is None. Times are seconds per call, infinite
    where the program failed.

    `rejected` says of every program that failed why it does not serve. Where another task computes the same result
    faster, this one `serves` not.
    """

    task_key: str
    name: str
    program: Program | None
    default_seconds: float
    seconds: float
    rejected: tuple[str, ...]
    serves: bool = True

    @property
    def serving(self) -> Program | None:
        """The program with the time that it took last; None where the default schedule serves, or another task."""
        if self.program is None or not self.serves:
            return None
        if isinstance(self.program, Guess):
            return replace(self.program, seconds=self.seconds)
        return replace(self.program, costs=(self.seconds,))


def finalists(
    tasks: Sequence[SearchTask], best: Mapping[str, Sequence[MeasureRecord]], known: Iterable[MeasureRecord] = ()
) -> tuple[tuple[SearchTask, tuple[Program, ...]], ...]:
    """Which of `tasks`, the ways to compute one layer, are to be timed again, and with which programs: those whose
    record in `best`, by task key, is close to the fastest; the first one with guesses, programs of tasks like
    it that are `known` among them, when there is no record.
    """
    seconds = [min((one.seconds for one in best.get(task.workload_key, ())), default=math.inf) for task in tasks]
    if math.isinf(min(seconds)):
        return ((tasks[0], first_guesses(tasks[0], known)),)
    close = [task for task, each in zip(tasks, seconds, strict=True) if each <= CLOSE * min(seconds)]
    return tuple((task, tuple(best[task.workload_key])) for task in close)


def decided(winners: Sequence[Winner]) -> tuple[Winner, ...]:
    """The winners of the tasks of one layer, of which only the fastest serves."""
    fastest = min(winners, key=lambda one: one.seconds)
    return tuple(replace(one, serves=one is fastest) for one in winners)


def choose_winner(task: SearchTask, programs: Sequence[Program], builder: Builder, runner: Runner) -> Winner:
    """Build the untuned program and `programs` once more, and take the fastest right one.

    Each is run and checked alone; those within `REACH` of the fastest are then timed in turn, so that a disturbance of
    the machine hits all of them, and the fastest turn counts. The winner runs once more in a fresh process, where it
    has to give the right answer again; if it does not, the next one is tried.
    Raises: MeasureError when the workers cannot work at all.
    """
    steps = [*(load_steps(program.steps) for program in programs), untuned_steps(task)]
    builds = builder.build(task, steps)
    results = runner.run(task, builds)
    seconds = _in_turn(task, builds, results, runner)
    untuned = len(programs)
    order = sorted((place for place in range(untuned) if math.isfinite(seconds[place])), key=lambda one: seconds[one])
    for place in order:
        if seconds[place] >= seconds[untuned]:
            break
        runner.restart()
        (again,) = runner.run(task, [builds[place]])
        if again.status is MeasureStatus.OK:
            return _winner(task, programs, results, seconds, place)
        results[place] = replace(again, error=f"in a fresh process: {again.error}")
    return _winner(task, programs, results, seconds, untuned)


def _in_turn(
    task: SearchTask, builds: Sequence[BuildResult], results: Sequence[MeasureResult], runner: Runner
) -> list[float]:
    """Seconds of every program, infinite for those that failed; those in reach of the fastest compared in turn."""
    seconds = [min(result.costs, default=math.inf) for result in results]
    close = [place for place, each in enumerate(seconds) if each <= REACH * min(seconds) and math.isfinite(each)]
    compared = runner.compare(task, [builds[place] for place in close]) if len(close) > 1 else None
    for place, result in zip(close, compared or (), strict=bool(compared)):
        seconds[place] = min(result.costs)
    return seconds


def _winner(
    task: SearchTask,
    programs: Sequence[Program],
    results: Sequence[MeasureResult],
    seconds: Sequence[float],
    place: int,
) -> Winner:
    """The program at `place` serves; behind the last one stands the untuned program."""
    rejected = tuple(
        f"{program.record_id or 'a guess'}: {_failure(result)}"
        for program, result in zip(programs, results, strict=False)
        if result.status is not MeasureStatus.OK
    )
    chosen = programs[place] if place < len(programs) else None
    return Winner(task.workload_key, task.name, chosen, seconds[len(programs)], seconds[place], rejected)


def _failure(result: MeasureResult) -> str:
    """Why a program failed, in one line."""
    return f"{result.status.name}: {result.error.strip().partition(chr(10))[0]}"
