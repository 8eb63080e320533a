"""Tiled matrix products with features and a synthetic time, computed from tile sizes, never from features."""

import numpy as np
from numpy.typing import NDArray

from retune.compiler.model import TrainingBatch
from retune.compiler.model.features import extract
from tests.support.feature_programs import HARDWARE, choices, tiled_matmul

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def _tiles(rng: np.random.Generator, count: int, levels: int) -> tuple[Ints, ...]:
    exponents = rng.multinomial(9, [1 / levels] * levels, size=count)
    return tuple(2 ** exponents[:, level].astype(np.int64) for level in range(levels))


def time_of(i: tuple[Ints, ...], j: tuple[Ints, ...], k: tuple[Ints, ...], parallel: Ints, vector: Ints) -> Floats:
    """Slow without vectors, with spilled or few accumulators, with large inner blocks, or with idle threads."""
    lanes = np.where(vector > 0, np.minimum(j[3], 16), 1)
    accumulators = i[3] * np.where(vector > 0, np.ceil(j[3] / 16), j[3])
    seconds = 512.0**3 / lanes
    seconds = seconds * np.where(accumulators > 28, 1 + accumulators / 28, np.maximum(1, 8 / accumulators) ** 0.7)
    block = 4 * (i[2] * i[3] * k[1] + k[1] * j[2] * j[3])
    seconds = seconds * np.where(block > 32768, 1.6, 1.0)
    chunks = np.where(parallel > 0, i[0], 1) * np.where(parallel > 1, j[0], 1)
    return np.asarray(seconds * np.ceil(chunks / 2) / chunks * 1e-9, dtype=np.float64)


def programs(count: int, seed: int) -> tuple[NDArray[np.float32], Floats]:
    """Features (count, 1, F) and seconds (count,) with 3 % of noise."""
    rng = np.random.default_rng(seed)
    i, j, k = _tiles(rng, count, 4), _tiles(rng, count, 4), _tiles(rng, count, 2)
    parallel, vector = rng.integers(0, 3, count), (rng.random(count) < 0.8).astype(np.int64)
    features = extract([tiled_matmul(i, j, k)], choices(parallel, vector), HARDWARE)
    return features, time_of(i, j, k, parallel, vector) * np.exp(rng.normal(0, 0.03, count))


def batch(task: str, count: int, seed: int) -> TrainingBatch:
    """`programs` as a training batch."""
    features, seconds = programs(count, seed)
    return TrainingBatch(task, features, seconds)
