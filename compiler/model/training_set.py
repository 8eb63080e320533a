"""The training set of a cost model: rows, labels and weights from the batches of many tasks.

Labels are relative to the best program of the task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retune.compiler.model.base import TrainingBatch

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Statement rows of N programs."""

    rows: NDArray[np.float32]
    """(R, F) features."""
    starts: Ints
    """(N,): the first row of each program."""
    labels: NDArray[np.float64]
    """(N,): throughputs relative to the best known program of the task, 0 for a failure."""
    weights: NDArray[np.float64]
    """(N,): the weight of each program."""


@dataclass(slots=True)
class History:
    """All measured batches, in the order of `append`."""

    batches: list[TrainingBatch] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    programs: int = 0

    def append(self, batch: TrainingBatch) -> None:
        """Add a batch; the best time of its task may fall, which changes the labels of all its programs."""
        self.batches.append(batch)
        fastest = float(np.min(batch.seconds, initial=np.inf))
        self.best[batch.task_key] = min(fastest, self.best.get(batch.task_key, np.inf))
        self.programs += len(batch.seconds)

    def until(self, batches: int) -> "History":
        earlier = History()
        for batch in self.batches[:batches]:
            earlier.append(batch)
        return earlier

    def condense(self, most: int, rng: np.random.Generator) -> list[TrainingBatch]:
        """One batch for each task and number of statements, with at most `most` programs in all: a fair share of every
        task, drawn at random, but always the task's fastest.
        """
        groups: dict[tuple[str, int], list[TrainingBatch]] = {}
        for batch in self.batches:
            groups.setdefault((batch.task_key, batch.features.shape[1]), []).append(batch)
        condensed = []
        budget = most
        # Smallest groups first: the unused part of a small task's share is divided among the larger tasks.
        for done, ((key, _), batches) in enumerate(sorted(groups.items(), key=lambda item: _programs(item[1]))):
            features = np.concatenate([batch.features for batch in batches])
            seconds = np.concatenate([batch.seconds for batch in batches])
            share = max(1, budget // (len(groups) - done))
            # The fastest program is always kept, because labels are relative to it.
            if len(seconds) > share:
                order = rng.permutation(len(seconds))
                chosen = np.sort([int(np.argmin(seconds)), *order[order != np.argmin(seconds)][: share - 1]])
                features, seconds = features[chosen], seconds[chosen]
            budget -= len(seconds)
            condensed.append(TrainingBatch(key, features, seconds))
        return condensed

    def rows(self, worst_weight: float, chosen: NDArray[np.bool_] | None = None) -> TrainingRows:
        """Training rows of all programs, or of the programs flagged in `chosen` (programs,)."""
        features: list[NDArray[np.float32]] = []
        lengths: list[Ints] = []
        labels: list[NDArray[np.float64]] = []
        first = 0
        for batch in self.batches:
            count = len(batch.seconds)
            selected = slice(None) if chosen is None else np.flatnonzero(chosen[first : first + count])
            first += count
            block = batch.features[selected]
            used = is_statement(block)
            length = used.sum(axis=1)
            label = throughputs(batch.seconds[selected], self.best[batch.task_key])
            features.append(block[used])
            lengths.append(length[length > 0])
            labels.append(label[length > 0])
        label = np.concatenate(labels)
        return TrainingRows(
            rows=np.concatenate(features),
            starts=_starts(lengths),
            labels=label,
            # Fast programs weigh more, as in Ansor, where the weight is the label itself. The lower bound keeps failed
            # programs, whose label is 0, from having no effect.
            weights=np.maximum(label, worst_weight),
        )


def _programs(batches: Sequence[TrainingBatch]) -> int:
    return sum(len(batch.seconds) for batch in batches)


def is_statement(features: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(B, S, F) → (B, S): rows of zeros only fill programs up to a common number of statements."""
    used: NDArray[np.bool_] = np.any(features, axis=2)
    return used


def throughputs(seconds: NDArray[np.float64], best: float) -> NDArray[np.float64]:
    """`best / seconds`: 1 for the fastest program, 0 for a failed program."""
    if not np.isfinite(best):
        return np.zeros(len(seconds))
    return best / seconds


def _starts(lengths: Sequence[Ints]) -> Ints:
    ends = np.cumsum(np.concatenate(lengths))
    return np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
