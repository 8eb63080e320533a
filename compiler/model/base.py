"""The interface of cost models: features in, one score per program out.

Equal updates give equal scores.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.errors import OptionError
from retune.compiler.model.metrics import ModelMetrics


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
