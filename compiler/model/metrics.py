"""Metrics of a ranking: scores compared with measured throughputs. 1 is perfect; a tie counts half."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_PROGRAMS = 1024
"""The number of pairs is quadratic, so only the first programs of a larger batch are judged."""


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """Quality of a model on programs it had not seen."""

    programs: int
    """Programs of the batch."""
    trained_on: int
    """Programs that the model was trained on."""
    pair_accuracy: float
    """Share of the pairs of different throughput that are in the right order."""
    top: int
    """Number of highest scores for the next two metrics."""
    top_recall: float
    """Share of the truly best `top` programs among the `top` highest scores."""
    peak: float
    """The best throughput among the `top` highest scores over the best of all: Ansor's a-peak."""


def pair_accuracy(scores: NDArray[np.float64], throughputs: NDArray[np.float64]) -> float:
    """The share of pairs with different throughputs that `scores` order rightly; 1.0 when there is no such pair."""
    scores, throughputs = scores[:_MOST_PROGRAMS], throughputs[:_MOST_PROGRAMS]
    truth = np.sign(throughputs[:, None] - throughputs[None, :])
    # The difference of two scores of -inf is NaN; it counts as a tie.
    with np.errstate(invalid="ignore"):
        guess = np.nan_to_num(np.sign(scores[:, None] - scores[None, :]))
    # Ties among the measured times carry no information; ties among the scores count half, through the sign 0.
    decided = truth != 0
    if not decided.any():
        return 1.0
    return float(0.5 + 0.5 * (truth * guess)[decided].mean())


def top_recall(scores: NDArray[np.float64], throughputs: NDArray[np.float64], top: int) -> float:
    """The share of the truly best `top` programs that are among the `top` highest scores."""
    best = set(np.argsort(-throughputs, kind="stable")[:top].tolist())
    chosen = set(np.argsort(-scores, kind="stable")[:top].tolist())
    return len(best & chosen) / max(1, len(best))


def judge(
    scores: NDArray[np.float64], throughputs: NDArray[np.float64], *, trained_on: int, top: int = 8
) -> ModelMetrics:
    top = max(1, min(top, len(scores) // 2))
    chosen = np.argsort(-scores, kind="stable")[:top]
    best = float(throughputs.max(initial=0.0))
    return ModelMetrics(
        programs=len(scores),
        trained_on=trained_on,
        pair_accuracy=pair_accuracy(scores, throughputs),
        top=top,
        top_recall=top_recall(scores, throughputs, top),
        peak=float(throughputs[chosen].max(initial=0.0)) / best if best > 0 else 1.0,
    )
