"""Task scheduler: which task gets the next round of trials, and when to stop. Pure functions.

The gradient strategy estimates how fast an objective, by default the weighted latency of the network, falls per round
given to a task: 20% recent progress, 80% optimism. Optimism assumes that time falls like 1/rounds, but not below what
similar tasks suggest: half the speed of the fastest of its group, `TaskState.group`.

Tasks of one layer, `TaskState.layer`, compute the same result in different ways, and only the fastest is used. The
latency of a layer is the least of its tasks' times, and the gain of a round is the expected reduction of that latency.
A task that is not expected to become the fastest has lost and gets no further rounds. The estimate for a task that is
behind is one round less optimistic; otherwise every task would seem able to win after its first round.

Intended differences from the original:

* the derivative of a weighted sum is the exact weight; another objective is differentiated over a thousandth of the
  task's time, where the original uses 0.1 ms for every task;
* a task without a valid program is assumed as slow, per operation, as the slowest measured task; the original gives it
  up or gives it every round;
* groups come from the structure of the computation (`retune.compiler.schedule.structure`); the original relies on a tag
  that no operator sets;
* ties go to the task with fewer rounds, never to a finished task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log

import numpy as np

from retune.compiler.core.options import SchedulerOptions

Objective = Callable[[Sequence[float]], float]
"""The function of every task's best seconds, in order, that tuning minimizes; monotone in each of them."""

UNKNOWN_SECONDS = 1e10
"""The seconds that an objective gets for a task without a valid program."""

_DERIVATIVE_STEP = 1e-3
"""Relative to the task's time: below any gain of a round, above the rounding error of a sum of times."""
_HOPELESS = 1.5
"""A task this many times slower than the fastest of its layer, in earlier runs, gets no round."""
_HEAD_START = 5
"""A task leaves its group only after this many rounds more than any other task of the group."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """Progress of one task."""

    rounds: int = 0
    best_seconds: float = inf
    """inf before the first valid program."""
    history: tuple[float, ...] = ()
    """The best seconds after each round."""
    flops: float = 0.0
    """Operations of one call."""
    weight: float = 1.0
    """Calls per run of the network."""
    exhausted: bool = False
    """Whether it has no unmeasured program left."""
    group: str = ""
    """Tasks of a group have the same structure; empty: no group."""
    layer: str = ""
    """Tasks of a layer compute the same result; empty: no alternatives."""

    @property
    def speed(self) -> float:
        """Operations per second of the best program, 0 before there is one."""
        return self.flops / self.best_seconds

    @property
    def rounds_without_gain(self) -> int:
        """Number of latest rounds without an improvement."""
        return sum(seconds == self.best_seconds for seconds in self.history[:-1]) if self.history else 0

    def after_round(self, best_seconds: float, *, exhausted: bool = False) -> "TaskState":
        """The state after a further round whose best valid program took `best_seconds` (inf if none was valid)."""
        best = min(self.best_seconds, best_seconds)
        history = (*self.history, best)
        return replace(self, rounds=self.rounds + 1, best_seconds=best, history=history, exhausted=exhausted)


def choose_task(
    states: Sequence[TaskState],
    options: SchedulerOptions,
    rng: np.random.Generator | None = None,
    objective: Objective | None = None,
) -> int | None:
    """The index of the task that gets the next round; None when every task is exhausted.

    "round-robin" takes the tasks in order. Otherwise every live task gets a warm-up round first: layers in descending
    order of weight x operations, the tasks of a layer in order, tasks last whose layer already has a measured
    alternative. Ties go to the task with fewer rounds, then to the earlier task. `rng` is used only if
    `options.explore` is positive. `objective` defaults to the objective that the options name.
    """
    live = [index for index, state in enumerate(states) if not state.exhausted]
    if not live:
        return None
    if options.strategy == "round-robin":
        return min(live, key=lambda index: (states[index].rounds, index))
    fresh = [index for index in live if states[index].rounds == 0]
    if fresh:
        # With a measured alternative in its layer the network can do without this task: it comes last.
        return min(fresh, key=lambda index: (isfinite(best_rival(states, index)), -_work(states, index), index))
    if options.explore > 0.0 and rng is not None and rng.random() < options.explore:
        return live[int(rng.integers(len(live)))]
    slopes = gradients(states, options, objective)
    return min(live, key=lambda index: (slopes[index], states[index].rounds, index))


def _work(states: Sequence[TaskState], index: int) -> float:
    """Operations of all uses of a task; for a layer, of its most expensive task."""
    layer = states[index].layer
    rivals = (state for state in states if layer and state.layer == layer)
    return max(state.weight * state.flops for state in (states[index], *rivals))


def gradients(
    states: Sequence[TaskState], options: SchedulerOptions, objective: Objective | None = None
) -> tuple[float, ...]:
    """Expected change of the objective per further round of each task: in seconds for a latency, as a share of the
    task's time for the geometric mean; never positive, 0 for exhausted tasks.
    """
    fastest, slowest = fastest_of_groups(states), _slowest_rate(states)
    return tuple(
        0.0
        if state.exhausted or state.rounds == 0
        else _importance(states, index, options, objective, slowest)
        * _expected_gain(state, options, slowest, fastest[state.group], best_rival(states, index))
        for index, state in enumerate(states)
    )


def has_lost(states: Sequence[TaskState], index: int, options: SchedulerOptions) -> bool:
    """Whether task `index` will not become the fastest of its layer, by a wide margin before its first round."""
    state, rival = states[index], best_rival(states, index)
    if rival >= state.best_seconds or not isfinite(rival):
        return False
    # Without a round in this run the only evidence is an earlier record, perhaps of a short search, so the margin is
    # wide.
    if state.rounds == 0:
        return isfinite(state.best_seconds) and state.best_seconds > _HOPELESS * rival
    fastest = fastest_of_groups(states)[state.group]
    return _expected_gain(state, options, _slowest_rate(states), fastest, rival) >= 0.0


def fastest_of_groups(states: Sequence[TaskState]) -> dict[str, float]:
    """The most operations per second in each group; 0 without a measured task."""
    fastest: dict[str, float] = {}
    for state in states:
        fastest[state.group] = max(fastest.get(state.group, 0.0), state.speed)
    return {**fastest, "": 0.0}


def _slowest_rate(states: Sequence[TaskState]) -> float:
    """The most seconds per operation of the measured tasks."""
    rates = [state.best_seconds / max(state.flops, 1.0) for state in states if isfinite(state.best_seconds)]
    return max(rates, default=1.0)


def best_rival(states: Sequence[TaskState], index: int) -> float:
    """Seconds of the fastest other task of the same layer; inf if there is none."""
    layer = states[index].layer
    rivals = (other for number, other in enumerate(states) if number != index and layer and other.layer == layer)
    return min((other.best_seconds for other in rivals), default=inf)


def _importance(
    states: Sequence[TaskState], index: int, options: SchedulerOptions, objective: Objective | None, slowest: float
) -> float:
    """Derivative of the objective by the seconds of task `index`; for the geometric mean, without the common factor."""
    if objective is None and options.objective != "geomean":
        return states[index].weight
    if objective is None:
        seconds = min(_assumed_seconds(states[index], slowest), best_rival(states, index))
        return 1.0 / seconds if states[index].weight > 0.0 else 0.0
    costs = [state.best_seconds if isfinite(state.best_seconds) else UNKNOWN_SECONDS for state in states]
    # One-sided difference with a step relative to the task's own time, so that it resolves both microseconds and
    # seconds.
    step = _DERIVATIVE_STEP * costs[index]
    lower = [cost - step if other == index else cost for other, cost in enumerate(costs)]
    return max(0.0, (objective(costs) - objective(lower)) / step)


def _expected_gain(state: TaskState, options: SchedulerOptions, slowest: float, fastest: float, rival: float) -> float:
    """Change of the seconds of a task's layer in its next round, never positive. `slowest` is the most seconds per
    operation of the measured tasks, `fastest` the most operations per second in its group, `rival` the seconds of the
    fastest other task of the layer.
    """
    best = _assumed_seconds(state, slowest)
    if best <= rival:
        return _expected_change(state, best, options, fastest, state.rounds)
    # A slower task of a layer helps the network only by the time it saves below its rival.
    return min(0.0, best + _expected_change(state, best, options, fastest, state.rounds + 1) - rival)


def _assumed_seconds(state: TaskState, slowest: float) -> float:
    """The best seconds of a task; without a valid program, its operations at `slowest` seconds each."""
    return state.best_seconds if isfinite(state.best_seconds) else slowest * max(state.flops, 1.0)


def _expected_change(state: TaskState, best: float, options: SchedulerOptions, fastest: float, rounds: int) -> float:
    """Change of a task's seconds, `best` so far, in the round after `rounds` rounds."""
    # Ansor's gradient, `alpha` * backward + (1 - `alpha`) * forward difference. The backward difference is the progress
    # per round over the last `backward_window` rounds.
    backward = 0.0
    last, first = state.rounds - 1, state.rounds - 1 - options.backward_window
    if last < len(state.history) and first >= 0:
        newer, older = state.history[last], state.history[first]
        if isfinite(newer) and isfinite(older):
            backward = (newer - older) / options.backward_window
    # The forward difference is optimistic: after r rounds the time is assumed to fall by a share of 1/r. This prefers
    # tasks with few rounds and decays without a parameter.
    reachable = best - best / rounds
    # A similar task shows a possible speed; `beta` allows being that much slower.
    if fastest > 0.0:
        reachable = min(reachable, options.beta * state.flops / fastest)
    forward = min(0.0, reachable - best)
    return options.alpha * backward + (1.0 - options.alpha) * forward


def leaves_group(states: Sequence[TaskState], index: int, options: SchedulerOptions) -> bool:
    """Whether task `index` does not behave like its group: it had many more rounds than any other member and is still
    more than `beta` times slower than the fastest.
    """
    state = states[index]
    others = [other for number, other in enumerate(states) if other.group == state.group and number != index]
    if not state.group or not others:
        return False
    fastest = max(other.speed for other in (state, *others))
    patient = state.rounds > _HEAD_START + max(other.rounds for other in others)
    # TVM's condition.
    return patient and state.speed < fastest / options.beta


def network_latency(states: Sequence[TaskState]) -> float:
    """The weighted sum of the best times in seconds, for a layer the least of its tasks' times; inf while a task or
    layer with a positive weight has no time.
    """
    return sum(weight * seconds for weight, seconds in _times_of_layers(states))


def geometric_mean(states: Sequence[TaskState]) -> float:
    """The geometric mean of the best times in seconds, for a layer the least of its tasks' times; inf while a task or
    layer with a positive weight has no time.
    """
    times = [seconds for _, seconds in _times_of_layers(states)]
    return exp(sum(map(log, times)) / len(times)) if times and inf not in times else inf


def _times_of_layers(states: Sequence[TaskState]) -> list[tuple[float, float]]:
    """Weight and best seconds of what the network runs: each layer's fastest task, and the tasks without a layer."""
    alone: list[tuple[float, float]] = []
    layers: dict[str, tuple[float, float]] = {}
    for state in states:
        if state.weight > 0.0:
            time = state.weight, state.best_seconds
            if state.layer:
                layers[state.layer] = min(time, layers.get(state.layer, time), key=lambda pair: pair[0] * pair[1])
            else:
                alone.append(time)
    return [*alone, *layers.values()]


def is_stalled(progress: Sequence[tuple[int, float]], patience: int) -> bool:
    """Whether the estimated latency has not improved within the last `patience` trials.

    `progress` holds (trials so far, estimated latency in seconds) after each round, in order. Never true before a
    finite estimate exists, nor for `patience` 0, which disables early stopping.
    """
    if patience <= 0 or not progress:
        return False
    best, reached = inf, None
    for trials, latency in progress:
        if latency < best:
            best, reached = latency, trials
    return reached is not None and progress[-1][0] - reached >= patience
