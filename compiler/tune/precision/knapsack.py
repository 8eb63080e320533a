"""Knapsack with choices: at most one option of each group, the most value within a budget of cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_STEPS = 4000
"""Costs are rounded up to this share of the budget, so the choice never exceeds it."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a group: what is gained, and what that costs; both at least 0."""

    value: float
    cost: float


def choose_options(groups: Sequence[Sequence[Option]], budget: float) -> list[int | None]:
    """The option of each group, None for none of them. Dynamic programming over costs in `_STEPS` steps: the value is
    the most there is for costs that are multiples of a step.
    """
    steps = _STEPS if budget > 0.0 else 0
    best = np.zeros(steps + 1)
    taken = np.full((len(groups), steps + 1), -1, np.int32)
    weights = [[_weight(option.cost, budget, steps) for option in options] for options in groups]
    for row, (options, costs) in enumerate(zip(groups, weights, strict=True)):
        before = best
        best = before.copy()
        for index, (option, cost) in enumerate(zip(options, costs, strict=True)):
            if cost > steps:
                continue
            with_option = before[: steps + 1 - cost] + option.value
            better = with_option > best[cost:]
            best[cost:][better] = with_option[better]
            taken[row, cost:][better] = index
    chosen: list[int | None] = []
    left = steps
    for row in reversed(range(len(groups))):
        index = int(taken[row, left])
        chosen.append(None if index < 0 else index)
        left -= 0 if index < 0 else weights[row][index]
    return chosen[::-1]


def _weight(cost: float, budget: float, steps: int) -> int:
    """A cost in steps, rounded up; more than all steps where it exceeds the budget."""
    if cost <= 0.0:
        return 0
    if cost > budget or not np.isfinite(cost):
        return steps + 1
    return int(np.ceil(cost / budget * steps))
