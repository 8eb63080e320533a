"""A cost model that scores at random: the same program and seed give the same score."""

import numpy as np
from numpy.typing import NDArray

from retune.compiler.model.base import TrainingBatch
from retune.compiler.model.metrics import ModelMetrics


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
