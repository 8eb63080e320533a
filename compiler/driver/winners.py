"""Choice of the program that a task of a compiled network uses: its fastest record, or a first guess of the search.

The chosen program was built again, was the fastest when all were timed in turn, the default schedule among them, and
gave the right answer in a fresh process after that. Of several tasks that compute the same result one is chosen.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.cost_model.random import RandomModel
from retune.compiler.driver.tuning import Origin, record_of
from retune.compiler.measure.measurer import Builder, Runner
from retune.compiler.measure.record import FIRST_GUESS, FITTED_GUESS, MeasureRecord, MeasureStatus
from retune.compiler.measure.results import BuildResult, Measurement, MeasureResult, join
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import Candidate, SketchPolicy
from retune.compiler.search.transfer import Relative, nearest

TRIED = 4
"""How many programs are tried for a task that no record knows."""
_TRANSFERRED = 0.5
"""Which share of these may be fitted programs of similar tasks."""
REACH = 2.0
"""Programs slower than so many times the fastest do not take part in the comparison."""
CLOSE = 1.2
"""A way to compute a layer whose record is so many times slower than that of the fastest way is not timed again."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A program that no run has measured: one that the search would try first. It has no record yet;
    `transferred` says that it is a record's of a similar task, fitted to this one's sizes.
    """

    steps: str
    record_id: str = ""
    transferred: bool = False
    seconds: float = math.inf

    @property
    def mutation(self) -> str:
        """What the record of this program will have as its `mutation`."""
        return FITTED_GUESS if self.transferred else FIRST_GUESS


Program = MeasureRecord | Guess


def first_guesses(task: SearchTask, known: Iterable[MeasureRecord] = ()) -> tuple[Guess, ...]:
    """Programs for a task that the budget did not reach: by first principles, and up to half of them those of the most
    similar tasks among `known`, the best records of other tasks.
    """
    policy = SketchPolicy(task, RandomModel(), SearchOptions(transfer_ratio=_TRANSFERRED))
    relatives = (Relative(one.task_key, one.steps, one.seconds) for one in known if one.costs)
    policy.advise([one.steps_text for one in nearest(task.workload_key, relatives, TRIED)])
    candidates = policy.ask(TRIED, 0)
    return tuple(Guess(one.steps_text, transferred=one.mutation == mutation.TRANSFER) for one in candidates)


@dataclass(frozen=True, slots=True)
class Winner:
    """What serves a task: `program`, or the default schedule when that is None. Times are seconds per call, infinite
    where the program failed.

    `rejected` says of every program that failed why it does not serve. Where another task computes the same result
    faster, this one `serves` not. `measured` is how the program was built and timed.
    """

    task_key: str
    name: str
    program: Program | None
    default_seconds: float
    seconds: float
    rejected: tuple[str, ...]
    serves: bool = True
    measured: Measurement | None = None

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


def record_guesses(
    winners: Iterable[Winner], origin: Origin, round_index: int, elapsed: float, new_id: Callable[[], str]
) -> tuple[tuple[Winner, ...], tuple[MeasureRecord, ...]]:
    """The winners with a record in place of every guess, and these records: a guess that was confirmed was measured."""
    found, records = [], []
    for winner in winners:
        guess, measured = winner.program, winner.measured
        if isinstance(guess, Guess) and measured is not None:
            candidate = Candidate(load_steps(guess.steps), guess.steps, None, None, guess.mutation)
            about = winner.task_key, winner.name, candidate, measured, round_index, elapsed, new_id()
            records.append(record_of(origin, *about))
            winner = replace(winner, program=records[-1])
        found.append(winner)
    return tuple(found), tuple(records)


def choose_winner(task: SearchTask, programs: Sequence[Program], builder: Builder, runner: Runner) -> Winner:
    """Build the untuned program and `programs` once more, and take the fastest right one.

    Each is run and checked alone; those within `REACH` of the fastest are then timed in turn, so that a disturbance of
    the machine hits all of them, and the fastest turn counts. The winner runs once more in a fresh process, where it
    has to give the right answer again; if it does not, the next one is tried.
    Raises: MeasureError when the workers cannot work at all.
    """
    steps = [*(load_steps(program.steps) for program in programs), default_steps_of(task)]
    builds = builder.build(task, steps)
    results = _in_turn(task, builds, runner.run(task, builds), runner)
    seconds = [min(result.costs, default=math.inf) for result in results]
    untuned = len(programs)
    order = sorted((place for place in range(untuned) if math.isfinite(seconds[place])), key=lambda one: seconds[one])
    for place in order:
        if seconds[place] >= seconds[untuned]:
            break
        runner.restart()
        (again,) = runner.run(task, [builds[place]])
        if again.status is MeasureStatus.OK:
            return _winner(task, programs, builds, results, place)
        results[place] = replace(again, error=f"in a fresh process: {again.error}")
    return _winner(task, programs, builds, results, untuned)


def _in_turn(
    task: SearchTask, builds: Sequence[BuildResult], results: Sequence[MeasureResult], runner: Runner
) -> list[MeasureResult]:
    """The results; those in reach of the fastest with the times and the contention of a comparison in turn."""
    seconds = [min(result.costs, default=math.inf) for result in results]
    close = [place for place, each in enumerate(seconds) if each <= REACH * min(seconds) and math.isfinite(each)]
    compared = runner.compare(task, [builds[place] for place in close]) if len(close) > 1 else None
    timed = list(results)
    for place, again in zip(close, compared or (), strict=bool(compared)):
        timed[place] = replace(results[place], costs=again.costs, contention=again.contention)
    return timed


def _winner(
    task: SearchTask,
    programs: Sequence[Program],
    builds: Sequence[BuildResult],
    results: Sequence[MeasureResult],
    place: int,
) -> Winner:
    """The program at `place` serves; behind the last one stands the untuned program."""
    seconds = [min(result.costs, default=math.inf) for result in results]
    rejected = tuple(
        f"{program.record_id or 'a guess'}: {_failure(result)}"
        for program, result in zip(programs, results, strict=False)
        if result.status is not MeasureStatus.OK
    )
    chosen = programs[place] if place < len(programs) else None
    measured = join(builds[place], results[place])
    return Winner(
        task.workload_key, task.name, chosen, seconds[-1], seconds[place], rejected, measured=measured
    )


def _failure(result: MeasureResult) -> str:
    """Why a program failed, in one line."""
    return f"{result.status.name}: {result.error.strip().partition(chr(10))[0]}"
