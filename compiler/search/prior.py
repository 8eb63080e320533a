"""In: features of programs. Out: a rough guess of their speed from first principles. Always: knows no measurement, so
it is there from the first round on.

A statement takes the larger of its arithmetic and its memory time: multiply-adds and loads that the register tile
issues, accumulators that do not fit, bytes that must come from each level of the memory, all divided by the threads
that have work.
"""

import numpy as np
import numpy.typing as npt

from compiler.features import FEATURE_NAMES
from compiler.search.genome import Scores
from compiler.target import HardwareParams

_COLUMN = {name: number for number, name in enumerate(FEATURE_NAMES)}

_LATENCY = 4.0
"""Cycles before the result of a multiply-add can be used."""
_PER_CYCLE = 2.0
"""Vector multiply-adds, and vector loads, that a core starts in a cycle."""
_STEP = 0.6
"""Cycles of a step that no unit can hide."""
_SPILL = 2.0
"""Cycles for an accumulator that lives in memory, per step."""
_BLOCK = 8.0
"""Cycles to enter and leave a register tile."""
_FORK = 4000.0
"""Cycles to start a parallel loop."""
_HOPELESS = 1e-3
"""The least model score that is told from others when it is blended with the prior."""
_BYTES_PER_CYCLE = {"traffic_64k": 48.0, "traffic_1m": 28.0, "traffic_8m": 20.0}
"""Sustained bandwidth towards a core beyond caches of these capacities."""


def prior_scores(features: npt.NDArray[np.float32], flop_count: float, hardware: HardwareParams) -> Scores:
    """Guessed throughput of programs (B, S, F) as a share of the machine's peak, shape (B,), always positive.

    `flop_count` is what one call of the whole program computes.
    """
    per_cycle = 2.0 * _PER_CYCLE * hardware.vector_unit_bytes / 4.0 * hardware.num_cores
    ideal = max(flop_count, 1.0) / per_cycle
    return np.asarray(ideal / _statement_cycles(features, hardware).sum(axis=1))


def blended(scores: Scores, prior: Scores, weight: float) -> Scores:
    """The geometric mean of model scores and prior, the prior with `weight` in 0 … 1; -inf stays -inf.

    Whatever the model holds for hopeless (a score of 0 or less) comes last, in the order of the prior.
    """
    if weight <= 0.0:
        return scores
    mixed = np.maximum(scores, _HOPELESS) ** (1.0 - weight) * prior**weight
    return np.asarray(np.where(np.isneginf(scores), -np.inf, mixed))


def _statement_cycles(features: npt.NDArray[np.float32], hardware: HardwareParams) -> Scores:
    """Cycles (B, S) that pass while each statement runs on all its threads."""

    def value(name: str) -> Scores:
        return np.exp2(features[:, :, _COLUMN[name]].astype(np.float64)) - 1.0

    accumulators = np.maximum(value("tile_accumulators"), 1.0)
    steps = value("tile_vector_operations") / accumulators
    loads = value("tile_vector_loads") + value("tile_broadcasts") + value("tile_gathers")
    step = np.maximum(np.maximum(accumulators, loads) / _PER_CYCLE, _LATENCY) + _STEP + _SPILL * value("tile_spilled")
    blocks = steps / np.maximum(value("tile_reduction"), 1.0)
    arithmetic = steps * step + value("tile_accumulator_moves") * 2.0 + blocks * _BLOCK
    memory = np.max([value(name) / rate for name, rate in _BYTES_PER_CYCLE.items()], axis=0)
    serial = np.maximum(arithmetic, memory) + 0.25 * np.minimum(arithmetic, memory)
    parallel = value("parallel_chunks") > 1.0
    share = np.where(parallel, np.maximum(value("parallel_imbalance"), 1.0) / hardware.num_cores, 1.0)
    return np.asarray(serial * share + np.where(parallel, _FORK, 0.0) + 1.0)
