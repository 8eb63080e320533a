"""Tunes a network or a task without the workflow engine and the store.

Policy, model, workers and the choice of the best programs are those of the flows.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.harness import Figure, Run
from retune.compiler.core import config
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import network_options
from retune.compiler.measure.record import MeasureRecord, MeasureStatus, TaskProgram
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.tune.extract import ExtractedNetwork
from retune.compiler.tune.tuning import RunHeader, Tuning, begin
from retune.compiler.tune.tuning_loop import EMPTY_ROUND, Budget, Round
from retune.compiler.tune.winners import Confirmation, choose_best, resolve, shortlist
from retune.storage.files import new_id

BATCH = 64
SHORTLIST = 3


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes that build and time programs."""

    measurer: LocalMeasurer


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Wall seconds of the parts of one round, and how many of its `programs` failed. `build` and `run` are sums
    over the programs, which overlap within `measure`.
    """

    ask: float
    measure: float
    tell: float
    build: float
    run: float
    programs: int
    failed: int

    @property
    def total(self) -> float:
        """Wall seconds of the whole round."""
        return self.ask + self.measure + self.tell


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best programs by task key, the numbers of programs measured and failed, and the wall seconds of the
    search without the final verification.
    """

    winners: dict[str, Confirmation]
    trials: int
    failed: int
    seconds: float

    @property
    def best(self) -> dict[str, TaskProgram]:
        """The winning programs by task key; tasks that another one serves are left out."""
        return {key: winner.program for key, winner in self.winners.items() if winner.used}


@contextmanager
def open_workers(threads: int, constant_bytes: int = 0) -> Iterator[Workers]:
    """Build processes on all cores and one that times programs on `threads` threads, as those of a network with so many
    bytes of weights.
    """
    with LocalMeasurer.with_options(network_options(threads, constant_bytes)) as measurer:
        yield Workers(measurer)


def write_tuned(run: Run, cases: Iterable[str], figures: Callable[[str, int, Workers, Run], Iterable[Figure]]) -> None:
    """Write `figures(case, threads, workers, run)` of the cases that are wanted, for each number of threads."""
    for threads in run.threads:
        with open_workers(threads) as workers:
            for case in filter(run.wants, cases):
                run.write_all(figures(case, threads, workers, run))


def begin_tuning(network: ExtractedNetwork, seed: int = 0, search: SearchOptions | None = None) -> Tuning:
    """A run of the network's tasks before its first round."""
    options = network_options(network.threads, network.constant_bytes).to_json()
    device, target = config.device_name(), str(network.target)
    run_info = RunHeader("benchmark", network.name, target, device, network.threads, seed, options)
    return begin(network.tasks, network.weights, run_info, search, network.layers)


def tune(network: ExtractedNetwork, workers: Workers, seconds: float) -> Tuned:
    """Spend about `seconds` on the network's tasks, then choose what serves them."""
    began = time.monotonic()
    tuning = begin_tuning(network)
    budget = Budget(None, seconds)
    records: dict[str, list[MeasureRecord]] = {key: [] for key in network.task_keys}
    for a_round in tuning.rounds_until(budget, BATCH, clock=lambda: time.monotonic() - began):
        measured, _ = play_round(tuning, a_round, workers, began)
        records[tuning.tasks[a_round.index].task.workload_key] += measured
    spent = time.monotonic() - began
    winners: dict[str, Confirmation] = {}
    builder, runner = workers.measurer.builder, workers.measurer.runner
    fastest = {
        key: sorted((one for one in found if one.costs), key=lambda one: one.seconds)[:SHORTLIST]
        for key, found in records.items()
    }
    for layer in network.partition.layers():
        chosen = [choose_best(task, programs, builder, runner) for task, programs in shortlist(layer.tasks, fastest)]
        winners.update((winner.task.workload_key, winner) for winner in resolve(chosen))
    failed = sum(one.status is not MeasureStatus.OK for found in records.values() for one in found)
    return Tuned(winners, tuning.trials, failed, spent)


def search(task: SearchTask, workers: Workers, seconds: float) -> tuple[list[MeasureRecord], int]:
    """Spend about `seconds` on one task alone: its fastest records, and how many programs were measured."""
    options = workers.measurer.runner.options
    run_info = RunHeader(
        "benchmark", task.name, str(task.target), config.device_name(), options.threads, 0, options.to_json()
    )
    tuning = begin([task], [1], run_info)
    found: list[MeasureRecord] = []
    began, budget = time.monotonic(), Budget(None, seconds)
    for a_round in tuning.rounds_until(budget, BATCH, clock=lambda: time.monotonic() - began):
        found += play_round(tuning, a_round, workers, began)[0]
    best = sorted((one for one in found if one.costs), key=lambda one: one.seconds)
    return best[:SHORTLIST], tuning.trials


def play_round(
    tuning: Tuning, a_round: Round, workers: Workers, began: float
) -> tuple[tuple[MeasureRecord, ...], RoundTimes]:
    """One round of one task, part by part. `began` is when the run's clock stood at 0; a task with nothing left is
    exhausted.
    """
    index = a_round.index
    task, best = tuning.tasks[index].task, tuning.tasks[index].state.best_seconds
    marks = [time.monotonic()]
    candidates = tuning.ask(index, a_round.count, a_round.spent)
    marks.append(time.monotonic())
    measured = workers.measurer.measure(task, [load_steps(candidate.steps) for candidate in candidates], best)
    marks.append(time.monotonic())
    records = tuning.records_of(index, candidates, measured, time.monotonic() - began, new_id)
    if records:
        tuning.tell(index, records)
    else:
        tuning.exhaust(index, EMPTY_ROUND)
    marks.append(time.monotonic())
    ask, measure, tell = (later - earlier for earlier, later in pairwise(marks))
    failed = sum(record.status is not MeasureStatus.OK for record in records)
    build = sum(record.build_seconds for record in records)
    run = sum(record.run_seconds for record in records)
    return records, RoundTimes(ask, measure, tell, build, run, len(records), failed)
