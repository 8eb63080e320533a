"""In: what is known of every task's progress. Out: which task gets the next round of trials, and whether to stop.
Always: pure functions.

The gradient strategy estimates how fast the weighted latency of the whole network falls per round given to a task: 20%
recent progress, 80% optimism that time falls like 1/rounds. Two choices differ from the original on purpose: the
derivative of the objective is the task's weight exactly (the objective is a weighted sum), and a task without a valid
program yet is assumed as slow, per operation, as the slowest measured task, instead of being given up or drawing every
round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from compiler.errors import OptionError

STRATEGIES = ("gradient", "round-robin")


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How rounds are dealt out.

    `alpha` is the share of recent progress in the gradient, `backward_window` the number of rounds it looks back,
    `explore` the probability of a round for a task drawn at random.
    """

    strategy: str = "gradient"
    alpha: float = 0.2
    backward_window: int = 3
    explore: float = 0.0

    def __post_init__(self) -> None:
        """Check every field. Raises: OptionError."""
        if self.strategy not in STRATEGIES:
            raise OptionError(f"strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r}")
        if not 0.0 <= self.alpha <= 1.0:
            raise OptionError(f"alpha must lie between 0 and 1, not {self.alpha!r}")
        if self.backward_window < 1:
            raise OptionError(f"backward_window must be at least 1, not {self.backward_window!r}")
        if not 0.0 <= self.explore <= 1.0:
            raise OptionError(f"explore must lie between 0 and 1, not {self.explore!r}")


@dataclass(frozen=True, slots=True)
class TaskState:
    """Progress of one task: `history` holds the best seconds after each round, `best_seconds` is inf before the first
    valid program.
    """

    rounds: int = 0
    best_seconds: float = inf
    history: tuple[float, ...] = ()
    flops: float = 0.0
    weight: float = 1.0
    exhausted: bool = False

    def after_round(self, best_seconds: float, *, exhausted: bool = False) -> "TaskState":
        """The state after one more round whose best valid program took `best_seconds` (inf when none was valid)."""
        best = min(self.best_seconds, best_seconds)
        return TaskState(self.rounds + 1, best, (*self.history, best), self.flops, self.weight, exhausted)


def choose_task(
    states: Sequence[TaskState], options: SchedulerOptions, rng: np.random.Generator | None = None
) -> int | None:
    """The index of the task that gets the next round; None when every task is exhausted.

    Every live task gets one warm-up round first, in descending order of weight x operations. Ties go to the task with
    fewer rounds, then to the earlier one. `rng` is only drawn from when `options.explore` is positive.
    """
    live = [index for index, state in enumerate(states) if not state.exhausted]
    if not live:
        return None
    fresh = [index for index in live if states[index].rounds == 0]
    if fresh:
        return min(fresh, key=lambda index: (-states[index].weight * states[index].flops, index))
    if options.strategy == "round-robin":
        return min(live, key=lambda index: (states[index].rounds, index))
    if options.explore > 0.0 and rng is not None and rng.random() < options.explore:
        return live[int(rng.integers(len(live)))]
    slopes = gradients(states, options)
    return min(live, key=lambda index: (slopes[index], states[index].rounds, index))


def gradients(states: Sequence[TaskState], options: SchedulerOptions) -> tuple[float, ...]:
    """Expected change of the network's latency per further round of each task, in seconds; never positive, 0 for
    exhausted tasks.
    """
    rates = [state.best_seconds / max(state.flops, 1.0) for state in states if isfinite(state.best_seconds)]
    slowest = max(rates, default=1.0)
    return tuple(_gradient(state, options, slowest) for state in states)


def _gradient(state: TaskState, options: SchedulerOptions, slowest: float) -> float:
    """One task's gradient; `slowest` is the most seconds per operation seen among the measured tasks."""
    if state.exhausted or state.rounds == 0:
        return 0.0
    best = state.best_seconds if isfinite(state.best_seconds) else slowest * max(state.flops, 1.0)
    backward = 0.0
    last, first = state.rounds - 1, state.rounds - 1 - options.backward_window
    if last < len(state.history) and first >= 0:
        newer, older = state.history[last], state.history[first]
        if isfinite(newer) and isfinite(older):
            backward = (newer - older) / options.backward_window
    forward = -best / state.rounds
    return state.weight * (options.alpha * backward + (1.0 - options.alpha) * forward)


def network_latency(states: Sequence[TaskState]) -> float:
    """The weighted sum of the best times in seconds; inf while a task with a positive weight has none."""
    return sum(state.weight * state.best_seconds for state in states if state.weight > 0.0)


def is_stalled(progress: Sequence[tuple[int, float]], patience: int) -> bool:
    """Whether the estimated latency has not improved within the last `patience` trials.

    `progress` holds (trials so far, estimated latency in seconds) after each round, in order. Never true before a
    finite estimate exists, nor for `patience` 0, which means "never stop early".
    """
    if patience <= 0 or not progress:
        return False
    best, reached = inf, None
    for trials, latency in progress:
        if latency < best:
            best, reached = latency, trials
    return reached is not None and progress[-1][0] - reached >= patience
