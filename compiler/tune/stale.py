"""Ranks networks by the speedup that more tuning is expected to bring, estimated from the records of their tasks.

The gain of a minute is the sum over its rounds, each given to the task with the largest gain. Doubling the rounds of a
task is expected to gain what the last doubling did, but no time below that of the fastest similar task.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.measure.record import MeasureRecord
from retune.compiler.runtime.readable import milliseconds
from retune.compiler.schedule.default.shares import are_small
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.task_scheduler import TaskState, fastest_of_groups, network_latency
from retune.compiler.tune.tuning_loop import first_state

# The largest batch of a run (`--batch`).
ROUND = 64
"""Trials that count as one round, whatever the rounds were that they were measured in."""
USUAL_TRIAL_SECONDS = 0.1
"""What a trial costs where no record tells."""
STEPS = 100
"""The parts of a minute that are given to tasks separately."""


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

    @property
    def seconds(self) -> float:
        """What a minute is expected to take off the latency."""
        return math.inf if self.untuned else self.gain * self.latency

    def __str__(self) -> str:
        if self.untuned:
            return f"{self.network}: {self.untuned} of {self.tasks} tasks have no record of this version"
        less = f"{milliseconds(self.seconds)} ms ({self.gain:.2%})"
        return f"{self.network}: {milliseconds(self.latency)} ms, a minute may take {less} off"


def estimate(
    network: str,
    tasks: Sequence[SearchTask],
    weights: Sequence[int],
    records: Mapping[str, Sequence[MeasureRecord]],
    engine: str,
    layers: Sequence[int] = (),
) -> TuningEstimate:
    """Judge a network by the records of its tasks on one machine, by workload key. Tasks with the same number in
    `layers` compute the same result, and any of them is enough; without numbers each task is a layer.

    Records of another version than `engine` do not count: what the generator makes of their steps has changed. Nor do
    untested candidates, which no search has measured, and tasks too small for trials, which have nothing else.
    """
    present = {
        key: [record for record in task_records if record.engine_version == engine and not record.is_unsearched]
        for key, task_records in records.items()
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
    costs = [record.build_seconds + record.run_seconds for task_records in present.values() for record in task_records]
    minute = 60.0 / (ROUND * (math.fsum(costs) / len(costs) or USUAL_TRIAL_SECONDS))
    kernels = [min((s for s in states if s.layer == layer), key=lambda s: s.best_seconds) for layer in sorted(tuned)]
    speeds = [fastest_of_groups(states)[kernel.group] for kernel in kernels]
    rounds = [0.0] * len(kernels)

    def times(more: float) -> list[float]:
        spent = zip(kernels, speeds, rounds, strict=True)
        return [kernel.weight * _expected_seconds(kernel, speed, done + more) for kernel, speed, done in spent]

    for _ in range(STEPS):
        gains = [now - then for now, then in zip(times(0.0), times(minute / STEPS), strict=True)]
        rounds[gains.index(max(gains))] += minute / STEPS
    return TuningEstimate(network, 1.0 - math.fsum(times(0.0)) / latency, latency, total, 0)


def _expected_seconds(state: TaskState, speed: float, more: float) -> float:
    """The best time of a task after `more` rounds, a power of its rounds, but no less than at the `speed` of the
    fastest similar task where that is another task.
    """
    # After its first round a task is assumed to halve its time when rounds double, as in the scheduler's gradient. What
    # was seen from half of the rounds to all of them soon replaces this: a task at its peak promises nothing.
    half, power = (state.rounds + 1) // 2, 1.0
    if half < state.rounds:
        seen = math.log(state.history[half - 1] / state.best_seconds) / math.log(state.rounds / half)
        power = min(1.0, seen + 1.0 / state.rounds**2)
    least = state.flops / speed if speed > state.speed else 0.0
    return max(least, state.best_seconds * math.pow(state.rounds / (state.rounds + more), power))


def task_state(records: Iterable[MeasureRecord], task: SearchTask, weight: int) -> TaskState:
    """How far the records, of any number of runs, have brought a task; they may be in any order."""
    # In the order of measuring: what is expected is the progress over rounds.
    seconds = [record.seconds for record in sorted(records, key=lambda record: (record.timestamp, record.record_id))]
    state = first_state(task, float(weight))
    for start in range(0, len(seconds), ROUND):
        state = state.after_round(min(seconds[start : start + ROUND]))
    return state


def most_promising(estimates: Iterable[TuningEstimate], least_gain: float) -> TuningEstimate | None:
    """The network expected to lose most seconds, or the first such; None when no `gain` reaches `least_gain`."""
    worthy = [estimate for estimate in estimates if estimate.gain >= least_gain and estimate.gain > 0.0]
    return max(worthy, key=lambda estimate: estimate.seconds, default=None)
