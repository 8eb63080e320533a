"""Analytical cost model of CPU statements: estimated cycles from their features, without measurements.

A statement takes the longer of its arithmetic and memory times plus a part of the shorter. The inputs are the steps of
the register tile, accumulators that spill or have to be moved, and bytes from each level of the memory hierarchy,
divided among the threads that have work.
"""

from collections.abc import Mapping

import numpy as np

from retune.compiler.core.target import HardwareParams
from retune.compiler.model.features.buffers import Columns
from retune.compiler.model.features.nest import Floats
from retune.compiler.schedule.counts import OpCounts

_LATENCY = 4.0
"""Cycles until the result of a multiply-add is available: 4 on Intel since Skylake and AMD since Zen 3 (Agner Fog)."""

PER_CYCLE = 2.0
"""Vector operations, and vector loads, that a core starts in a cycle: the FMA and load ports of x86 CPUs with AVX2."""

_STEP = 0.6
"""Cycles of a step of the register tile that no unit hides."""

_CONFLICT = 1.0
"""Cycles to reload a line from the second cache that others have evicted from the first: 0.5 to 2 measured on Zen 4."""

_SPILL = 2.0
"""Cycles that an accumulator in memory costs per step."""

_BLOCK = 8.0
"""Cycles to enter and leave a register tile."""

_FORK = 4000.0
"""Cycles to start a parallel loop."""

_OVERLAP = 0.25
"""The share of the shorter of arithmetic and memory time that is not hidden by the longer."""

_BYTES_PER_CYCLE = {"traffic_64k": 48.0, "traffic_1m": 28.0, "traffic_8m": 20.0}
"""Sustained bandwidth to a core from beyond a cache of this capacity."""

_COST = {
    "float_mad": 1.0, "float_addsub": 1.0, "float_mul": 1.0, "float_divmod": 16.0, "float_cmp": 1.0, "float_math": 20.0,
    "int_mad": 3.0, "int_addsub": 1.0, "int_mul": 2.0, "int_divmod": 64.0, "int_cmp": 1.0, "int_math": 20.0,
}  # fmt: skip
"""Vector operations per operation on a vector: functions are polynomials, products of wide integers take two, a
quotient blocks its unit.
"""


def operation_cost(ops: OpCounts, is_float: bool) -> float:
    """Vector operations for one vector of results: those on floats for a float result, on integers for an integer.

    Conversions count with loads, and tests of indices are made outside the innermost loops.
    """
    prefix = "float" if is_float else "int"
    costs = (cost * int(getattr(ops, name)) for name, cost in _COST.items() if name.startswith(prefix))
    return max(1.0, sum(costs))


def estimate_columns(
    values: Mapping[str, Floats | float], cost: float, is_reduction: bool, hardware: HardwareParams
) -> Columns:
    """Columns of the group "estimate" that need no other statement.

    `values` are the unscaled columns of this statement, `cost` the vector operations of one vector of results. The
    steps of a reduction wait for each other; those of other statements are pipelined.
    """
    accumulators = np.maximum(values["tile_accumulators"], 1.0)
    steps = values["tile_vector_operations"] / accumulators
    loads = values["tile_vector_loads"] + values["tile_broadcasts"] + values["tile_gathers"]
    # One instruction does a whole dot product, however many operations it replaces.
    vector_cost = np.where(np.asarray(values["tile_dot_width"]) > 1, 1.0, cost)
    operations = accumulators * vector_cost + values["tile_conversions"]
    # Arithmetic and load units are separate ports: the busier one sets the pace.
    busy = np.maximum(operations, loads) / PER_CYCLE + _CONFLICT * values["tile_conflicts"]
    spilled = _SPILL * values["tile_spilled"]
    if is_reduction:
        blocks = steps / np.maximum(values["tile_reduction"], 1.0)
        overhead = 2.0 * values["tile_accumulator_moves"] + _BLOCK * blocks
        # Each accumulator waits for its last result: with fewer than latency x ports of them the chain is the limit.
        arithmetic = steps * (np.maximum(busy, _LATENCY) + _STEP + spilled) + overhead
    else:
        arithmetic = steps * (busy + _STEP + spilled)
    memory = np.zeros(1)
    for name, rate in _BYTES_PER_CYCLE.items():
        # A roofline over the hierarchy: the slowest level bounds, transfers of the others overlap with it.
        memory = np.maximum(memory, values[name] / rate)
    serial = np.maximum(arithmetic, memory) + _OVERLAP * np.minimum(arithmetic, memory)
    parallel = np.asarray(values["parallel_chunks"]) > 1
    # Time of the slowest thread: chunks that do not divide among the cores leave some idle.
    share = np.where(parallel, values["parallel_imbalance"] / hardware.num_cores, 1.0)
    yield "estimate_arithmetic", arithmetic
    yield "estimate_memory", memory
    yield "estimate_cycles", serial * share + np.where(parallel, _FORK, 0.0)
