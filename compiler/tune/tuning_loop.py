"""The loop of a tuning run: which task gets the next round, how many programs it measures, and when the run ends.

Every way to tune is this loop. `retune.compiler.tune.tuning` adds policies, a cost model and stored records to it,
`retune.compiler.tvm.auto_scheduler` its callbacks and logs. The decisions are the pure functions of
`retune.compiler.search.task_scheduler`, and the budget is a limit on trials or seconds; it reads no clock.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, Self, TypeVar

import numpy as np

from retune.compiler.core.options import SchedulerOptions
from retune.compiler.measure.record import TaskProgram
from retune.compiler.schedule.structure import structure_of
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.task_scheduler import (
    Objective,
    TaskState,
    best_rival,
    choose_task,
    geometric_mean,
    has_lost,
    is_stalled,
    leaves_group,
    network_latency,
)
from retune.compiler.search.transfer import ADVICE, fastest, k_nearest

MIN_ROUND = 4
"""Fewer programs than this teach the cost model too little to be worth a round."""

TRIALS_PER_SECOND = 4.0
"""A cautious guess of how fast trials go, used to size the rounds of a time budget before anything is measured."""

FIRST_LOOK = 0.2
"""The share of the budget in which every task has its first round."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend; a limit that is None does not count."""

    trials: int | None
    """Programs to measure."""
    seconds: float | None
    """Seconds of rounds."""
    rounds_each: int = 2
    """Rounds are small enough that each task gets so many of them; with 0 they are as large as they may be."""

    def without(self, seconds: float) -> Self:
        """What is left where the command takes so many seconds for other things: half of a time limit at least."""
        return self if self.seconds is None else replace(self, seconds=max(self.seconds - seconds, self.seconds / 2))

    def is_spent(self, trials: int, elapsed: float, next_round: float = 0.0) -> bool:
        """Whether `trials` programs in `elapsed` seconds leave no room for another round of about `next_round`
        seconds.

        A round that would overrun a time limit by less than half of itself is still begun.
        """
        out_of_trials = self.trials is not None and trials >= self.trials
        # Half a round: runs end as often a little late as a little early, by half a round at most.
        return out_of_trials or (self.seconds is not None and elapsed + next_round / 2 >= self.seconds)

    def spent(self, trials: int, elapsed: float) -> float:
        """The share of the budget that is gone, in 0 … 1; 0 where nothing is limited."""
        shares = [0.0]
        if self.trials is not None:
            shares.append(trials / self.trials)
        if self.seconds is not None:
            shares.append(elapsed / self.seconds)
        return min(1.0, max(shares))

    def round_size(self, batch: int, tasks: int, trials: int, elapsed: float = 0.0, *, is_first: bool = False) -> int:
        """How many programs the next round measures, after `trials` in `elapsed` seconds: at most `batch`, few enough
        that each of `tasks` tasks gets `rounds_each` rounds, the first, if this `is_first`, within `FIRST_LOOK`
        of the budget.

        At least 1, and never more than the trials that are left.
        """
        expected = [inf]
        if self.trials is not None:
            expected.append(self.trials)
        if self.seconds is not None:
            expected.append(self.seconds * (trials / elapsed if trials and elapsed else TRIALS_PER_SECOND))
        # Small rounds let the scheduler move trials between tasks; large rounds cost less sampling and training.
        share, rounds = (FIRST_LOOK, 1) if is_first else (1 - FIRST_LOOK, max(self.rounds_each - 1, 1))
        fitting = min(expected) * share / (rounds * max(tasks, 1))
        size = int(min(batch, max(MIN_ROUND, fitting))) if self.rounds_each else batch
        left = size if self.trials is None else self.trials - trials
        return max(1, min(size, left))

    def seconds_left(self, trials: int, elapsed: float) -> float | None:
        """A straight-line estimate of the seconds until the budget ends; None before anything was measured."""
        estimates = []
        if self.seconds is not None:
            estimates.append(self.seconds - elapsed)
        if self.trials is not None and trials > 0:
            estimates.append(elapsed / trials * (self.trials - trials))
        return max(0.0, min(estimates)) if estimates else None


EMPTY_ROUND = "it has no program left that was not measured"
"""Why a task ends whose policy proposes nothing."""


@dataclass(slots=True)
class TaskProgress:
    """One task of a run: how its rounds went, its fastest programs, and why it gets no further round, if it does not.
    Times are seconds per call, infinite while unknown.
    """

    task: SearchTask
    state: TaskState
    fastest: tuple[TaskProgram, ...] = ()
    stop_reason: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """A round to do: of task `index`, at most `count` programs, after the share `spent` of the budget, 0 to 1."""

    index: int
    count: int
    spent: float


def first_state(task: SearchTask, weight: float, layer: str = "") -> TaskState:
    """A task before its first round. Tasks with the same `layer` compute the same result, see `TaskState`."""
    return TaskState(flops=max(task.flop_count, 1.0), weight=weight, group=structure_of(task.dag), layer=layer)


ProgressT = TypeVar("ProgressT", bound=TaskProgress)


class TuningLoop(Generic[ProgressT]):
    """The rounds of a run: `trials` programs measured in `rounds` rounds, `elapsed` seconds on the run's clock.

    `rounds_until` gives one round after the other; the caller calls `tell` or `exhaust` before the next.
    `objective` is what tuning makes small, by default what the options of the scheduler name. `ended` says why the run
    ended before its budget was spent.
    """

    def __init__(
        self,
        tasks: Iterable[ProgressT],
        scheduler: SchedulerOptions | None = None,
        objective: Objective | None = None,
        seed: int = 0,
    ) -> None:
        self.tasks = tuple(tasks)
        self.scheduler = scheduler or SchedulerOptions()
        self.objective = objective
        self.seed = seed
        self.trials = 0
        self.elapsed = 0.0
        self.rounds = 0
        self.ended = ""
        self._progress: list[tuple[int, float]] = []
        self._foreign: tuple[TaskProgram, ...] = ()

    @property
    def states(self) -> list[TaskState]:
        """How the rounds of every task went."""
        return [task.state for task in self.tasks]

    @property
    def latency(self) -> float:
        """The estimated latency of the network in seconds: the weighted sum of the best times; infinite while a time is
        unknown.
        """
        return network_latency(self.states)

    @property
    def score(self) -> float:
        """The objective as it stands, infinite while it takes a time that is unknown."""
        if self.objective is None:
            return geometric_mean(self.states) if self.scheduler.objective == "geomean" else self.latency
        best = [state.best_seconds for state in self.states]
        return math.inf if math.inf in best else self.objective(best)

    @property
    def live(self) -> int:
        """How many tasks may still get a round."""
        return sum(not task.state.exhausted for task in self.tasks)

    @property
    def round_seconds(self) -> float:
        """How long a round takes on average; 0 before the first."""
        return self.elapsed / self.rounds if self.rounds else 0.0

    def rounds_until(
        self, budget: Budget, batch: int, patience: int = 0, clock: Callable[[], float] | None = None
    ) -> Iterator[Round]:
        """The rounds of at most `batch` programs until the budget is spent, the last `patience` trials improved nothing
        (0: no such limit), or no task has anything left. `clock` is the run's own, in seconds.
        """
        while not budget.is_spent(self.trials, clock() if clock else 0.0, self.round_seconds):
            if self.is_stalled(patience):
                self.ended = f"stopped early: {patience} trials brought nothing"
                return
            index = self.choose()
            if index is None:
                self.ended = "no task has anything left to try"
                return
            elapsed, is_first = clock() if clock else 0.0, not self.tasks[index].state.rounds
            size = budget.round_size(batch, self.live, self.trials, elapsed, is_first=is_first)
            yield Round(index, size, budget.spent(self.trials, elapsed))

    def choose(self) -> int | None:
        """The index of the task that gets the next round; None when no task has anything left to try."""
        # a generator per round: a resumed run draws what the run would have drawn
        rng = np.random.default_rng((self.seed, self.rounds))
        return choose_task(self.states, self.scheduler, rng, self.objective)

    def advice(self, index: int) -> list[str]:
        """Good programs of the tasks most like task `index`, as steps strings, the most helpful first."""
        task = self.tasks[index]
        others = (program for other in self.tasks if other is not task for program in other.fastest)
        return [program.steps for program in k_nearest(task.task.workload_key, (*others, *self._foreign), ADVICE)]

    def finish_round(
        self, index: int, programs: Sequence[TaskProgram], stop_reason: str = "", known_seconds: float = math.inf
    ) -> None:
        """Take in the programs that a round of task `index` measured. A `stop_reason` ends the task; `known_seconds` is
        the time of its best program that no round measured.
        """
        task = self.tasks[index]
        task.fastest = fastest((*programs, *task.fastest))
        task.stop_reason = stop_reason
        best = min((program.seconds for program in programs), default=math.inf)
        task.state = task.state.after_round(min(best, known_seconds), exhausted=bool(stop_reason))
        # A task that has been searched much longer than its kin is no longer compared with them.
        if leaves_group(self.states, index, self.scheduler):
            task.state = replace(task.state, group="")
        self.end_losers()
        self.trials += len(programs)
        self.rounds += 1
        self._progress.append((self.trials, self.score))

    def is_stalled(self, patience: int) -> bool:
        """Whether the last `patience` trials did not improve the objective; never for 0."""
        return is_stalled(self._progress, patience)

    def exhaust(self, index: int, reason: str) -> None:
        """Give a task no further rounds."""
        task = self.tasks[index]
        task.stop_reason = reason
        task.state = replace(task.state, exhausted=True)

    def restart(self) -> None:
        """Begin another run that knows what this one found: nothing is spent, and every task may get rounds."""
        self.trials, self.ended, self._progress = 0, "", []
        for task in self.tasks:
            task.stop_reason = ""
            task.state = replace(task.state, exhausted=False)

    def end_losers(self) -> None:
        """Give no further rounds to tasks whose layer is computed faster in another way."""
        for index, task in enumerate(self.tasks):
            if not task.state.exhausted and has_lost(self.states, index, self.scheduler):
                rivals = (each for each in self.tasks if each is not task and each.state.layer == task.state.layer)
                best = min(rivals, key=lambda each: each.state.best_seconds)
                self.exhaust(index, f"{best.task.name} computes the same faster")

    def is_behind(self, index: int) -> bool:
        """Whether another task computes the result of task `index` faster."""
        return best_rival(self.states, index) < self.tasks[index].state.best_seconds
