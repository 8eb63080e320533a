"""Analytical cost model: the throughput of programs by their estimated cycles, and its blend with the learned model.

It needs no measurement, so it ranks programs from the first round on.
"""

import numpy as np
import numpy.typing as npt

from retune.compiler.core.target import HardwareParams
from retune.compiler.model.features import FEATURE_NAMES
from retune.compiler.model.features.estimate import PER_CYCLE
from retune.compiler.search.genome import Scores

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
