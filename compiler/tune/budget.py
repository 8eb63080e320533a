"""Budget of a run: a limit on trials or seconds, whether it is spent, and how many trials the next round gets.

No clock is read here.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Self

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
