"""The interface of cost models, the metrics of their rankings, and a model that scores at random.

Features go in, one score per program comes out. Equal updates give equal scores. Metrics compare scores with measured
throughputs: 1 is perfect; a tie counts half.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.errors import OptionError

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


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Measured programs of one task. Raises: OptionError when the shapes do not fit or a time is not positive."""

    task_key: str
    features: NDArray[np.float32]
    """(N, S, F), from `retune.compiler.model.features.extract`; S may differ between batches."""
    seconds: NDArray[np.float64]
    """(N,), inf for a program that failed."""

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or self.seconds.shape != (len(self.features),):
            raise OptionError(
                f"training batch of {self.task_key}: features {self.features.shape} must be (N, S, F) "
                f"and seconds {self.seconds.shape} must be (N,)"
            )
        if not np.all(self.seconds > 0):
            raise OptionError(f"training batch of {self.task_key}: seconds must be positive, inf for a failure")


class CostModel(Protocol):
    """Ranks programs.

    `update` learns from a batch. `predict` takes features (B, S, F) and returns float64 scores (B,), higher is better,
    -inf for a program whose features are all 0 (lowering failed); it is a pure function of the updates so far.
    `last_metrics` compares the latest batch with its predictions before learning; None if there was nothing to compare.
    """

    @property
    def last_metrics(self) -> ModelMetrics | None:
        """Quality of the predictions for the latest batch, made before learning from it."""

    def update(self, batch: TrainingBatch) -> None:
        """Learn from one batch."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Score programs."""


def random_scores(features: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """Scores in [0, 1) of programs (B, S, F), hashed from features and seed; -inf for programs without features."""
    count, statements, width = features.shape
    words = np.ascontiguousarray(features, dtype=np.float32).reshape(count, statements * width).view(np.uint32)
    drawn = np.random.default_rng(seed).integers(0, 2**63, words.shape[1], dtype=np.uint64)
    weights = drawn * np.uint64(2) + np.uint64(1)
    # A sum with odd random weights, then the usual shift-and-multiply to spread it over all bits.
    mixed = words.astype(np.uint64) @ weights
    # The shifts and multipliers are those of SplitMix64's finalizer (Stafford's variant 13).
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    # The highest 53 bits, which a float64 holds exactly: uniform in [0, 1).
    scores = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    return np.where(words.any(axis=1), scores, -np.inf)


class RandomModel:
    """A cost model without knowledge: the baseline of every search, and the start of every model."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    @property
    def last_metrics(self) -> ModelMetrics | None:
        return None

    def update(self, batch: TrainingBatch) -> None:
        """Nothing is learned."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores (B,) in [0, 1), -inf for programs without features."""
        return random_scores(features, self._seed)
