"""Which network gains most from more tuning, by what the records say of its tasks.

The gain that a minute of tuning is expected to bring is that of the task scheduler's gradient: the seconds that the
next round of the most promising task takes off the network's latency, over what a round costs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.driver.tuning_loop import first_state
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.options import SchedulerOptions, TuneOptions
from retune.compiler.runtime.readable import milliseconds
from retune.compiler.schedule.shares import are_small
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.task_scheduler import TaskState, gradients, network_latency

# The largest batch of a run (`--batch`).
ROUND = 64
"""Trials that count as one round, whatever the rounds were that they were measured in."""
USUAL_TRIAL_SECONDS = 0.1
"""What a trial costs where no record tells."""


@dataclass(frozen=True, slots=True)
class TuningEstimate:
    """What is expected of tuning a network: `gain` is the share of its latency that a minute takes off, infinite while
    a task has no valid record of the present engine. `latency` is in seconds, the weighted sum of the tasks' best
    times. Tasks that compute the same count as one.
    """

    network: str
    gain: float
    latency: float
    tasks: int
    untuned: int

    def __str__(self) -> str:
        if self.untuned:
            return f"{self.network}: {self.untuned} of {self.tasks} tasks have no record of this version"
        return f"{self.network}: {milliseconds(self.latency)} ms, a minute may take {self.gain:.2%} off"


def estimate(
    network: str,
    tasks: Sequence[SearchTask],
    weights: Sequence[int],
    records: Mapping[str, Sequence[MeasureRecord]],
    engine: str,
    layers: Sequence[int] = (),
    options: SchedulerOptions | None = None,
) -> TuningEstimate:
    """Judge a network by the records of its tasks on one machine, by workload key. Tasks with the same number in
    `layers` compute the same result, and one of them is enough; without numbers each task is a layer.

    `options` are those that tuning would give its rounds by; the gain is one of latency, whatever their objective.
    Records of another version than `engine` do not count: what the generator makes of their steps has changed. Nor do
    top candidates, which no search has measured, and tasks too small for trials, which have nothing else.
    """
    present = {
        key: [record for record in found if record.engine_version == engine and not record.is_guess]
        for key, found in records.items()
    }
    numbers = list(layers) or list(range(len(tasks)))
    states = [
        replace(task_state(present.get(task.workload_key, ()), task, weight), layer=f"layer {number}")
        for task, weight, number, small in zip(tasks, weights, numbers, are_small(tasks, weights), strict=True)
        if not small
    ]
    tuned = {state.layer for state in states if math.isfinite(state.best_seconds)}
    total, latency = len({state.layer for state in states}), network_latency(states)
    untuned = total - len(tuned)
    if untuned or not states:
        return TuningEstimate(network, math.inf if untuned else 0.0, latency, total, untuned)
    # The cost of a round on this machine, from what its records took.
    costs = [record.build_seconds + record.run_seconds for found in present.values() for record in found]
    round_seconds = ROUND * (math.fsum(costs) / len(costs) if costs else USUAL_TRIAL_SECONDS)
    steepest = -min(gradients(states, replace(options or TuneOptions(), objective="latency")))
    return TuningEstimate(network, steepest * 60.0 / max(round_seconds, 1e-9) / latency, latency, total, 0)


def task_state(records: Iterable[MeasureRecord], task: SearchTask, weight: int) -> TaskState:
    """How far the records, of any number of runs, have brought a task; they may be in any order."""
    # In the order of measuring: the gradient is the progress over rounds.
    seconds = [record.seconds for record in sorted(records, key=lambda record: (record.timestamp, record.record_id))]
    state = first_state(task, float(weight))
    for start in range(0, len(seconds), ROUND):
        state = state.after_round(min(seconds[start : start + ROUND]))
    return state


def most_promising(estimates: Iterable[TuningEstimate], least_gain: float) -> TuningEstimate | None:
    """The network with the highest gain, the first of equals; None when none reaches `least_gain` a minute."""
    worthy = [found for found in estimates if found.gain >= least_gain and found.gain > 0.0]
    return max(worthy, key=lambda found: found.gain, default=None)
