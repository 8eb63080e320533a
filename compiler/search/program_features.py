"""Features of a task's programs, which cost models score, and their scores by the analytical model.

One program is given by its steps, many by rows of a sketch's space (`Group`); both ways give equal features. Shapes: B
programs, S statements, F features. The analytical model estimates cycles from features, so it needs no measurement and
ranks programs from the first round on; it is blended with the learned model.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from retune.compiler.codegen.dot_instructions import dots_of
from retune.compiler.core.errors import ScheduleError, TargetError
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.dot import Pair
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.model.features.estimate import PER_CYCLE
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.genome import Scores
from retune.compiler.search.space import Group

_CYCLES = FEATURE_NAMES.index("estimate_cycles")
_FEWEST = 8
"""Fewer results do not judge the analytical model."""
_HOPELESS = 1e-3
"""The smallest model score in a blend with the prior."""


def prior_scores(features: npt.NDArray[np.float32], flop_count: float, hardware: HardwareParams) -> Scores:
    """Predicted throughput of programs (B, S, F) as a share of the machine's peak, shape (B,), always positive.

    `flop_count` counts the operations of one call of the program.
    """
    # A multiply-add is two operations.
    per_cycle = 2.0 * hardware.multiply_adds_per_cycle(PER_CYCLE)
    # Features hold log2(1 + x), which is undone here.
    cycles = np.exp2(features[:, :, _CYCLES].astype(np.float64)) - 1.0
    return np.asarray(max(flop_count, 1.0) / per_cycle / np.maximum(cycles.sum(axis=1), 1.0))


def rank_correlation(prior: Scores, seconds: Scores) -> float:
    """Accuracy of the analytical model against times (B,), in 0 … 1: the share of pairs in the right order, each
    weighted by the difference of its times, rescaled so that chance gives 0; 1 for too few results.
    """
    if len(seconds) < _FEWEST:
        return 1.0
    # Logarithms make the weight of a pair the ratio of its times, so pairs that differ by noise hardly count.
    faster = np.log(seconds)[:, None] - np.log(seconds)[None, :]
    order = np.sign(prior[None, :] - prior[:, None])
    total = float(np.abs(faster).sum())
    return max(0.0, float((faster * order).sum()) / total) if total > 0.0 else 1.0


def blend(scores: Scores, prior: Scores, weight: float) -> Scores:
    """Geometric mean of model scores and prior, the prior with `weight` in 0 … 1; -inf stays -inf.

    Programs that the model considers hopeless (a score of 0 or less) come last, in the order of the prior.
    """
    if weight <= 0.0:
        return scores
    # A geometric mean does not depend on the scales of the two scores.
    mixed = np.maximum(scores, _HOPELESS) ** (1.0 - weight) * prior**weight
    return np.asarray(np.where(np.isneginf(scores), -np.inf, mixed))


Features = NDArray[np.float32]


def scored_hardware(task: SearchTask) -> HardwareParams:
    """The task's hardware as features see it: `num_cores` is at least 1, since a GPU has none."""
    return replace(task.hardware, num_cores=max(1, task.hardware.num_cores))


def scored_dots(task: SearchTask) -> frozenset[Pair]:
    """Factor types of the target's dot-product instructions; empty if there is no code generation for the target."""
    try:
        return frozenset(dots_of(task))
    except TargetError:
        return frozenset()


def features_of_steps(task: SearchTask, steps: Sequence[Step]) -> Features:
    """Features (S, F) of the program that steps make of the task's computation.

    Raises: ScheduleError when they do not fit, or a tile size is unknown.
    """
    state = replay(task.scored_dag, steps)
    nests, choices = statement_nests(state), choices_of(state)
    features = extract(nests, choices, scored_hardware(task), count=1, dots=scored_dots(task))
    return np.asarray(features[0])


class TaskFeatures:
    """The features of a task's programs, padded to at least `statements` statements so that shapes agree."""

    def __init__(self, task: SearchTask, statements: int) -> None:
        self._task = task
        self._statements = statements
        self._hardware = scored_hardware(task)
        self._dots = scored_dots(task)

    def of_group(self, group: Group) -> Features:
        """Features (B, S, F) of the programs of a group, a program for each of its rows."""
        features = extract(group.nests, group.choices, self._hardware, count=len(group.rows), dots=self._dots)
        return pad_statements(features, self._statements)

    def of_steps(self, steps: Sequence[Step]) -> Features | None:
        """Features (S, F) of one program, None where the steps do not fit the task."""
        try:
            return pad_statements(features_of_steps(self._task, steps), self._statements)
        except ScheduleError:
            return None

    def prior(self, features: Features) -> Scores:
        """The scores of the analytical model for programs (B, S, F), shape (B,)."""
        return prior_scores(features, self._task.flop_count, self._hardware)


def pad_statements(features: Features, statements: int) -> Features:
    """Features (…, S, F) with rows of zeros for at least so many statements."""
    missing = statements - features.shape[-2]
    if missing <= 0:
        return features
    return np.pad(features, [(0, 0)] * (features.ndim - 2) + [(0, missing), (0, 0)])
