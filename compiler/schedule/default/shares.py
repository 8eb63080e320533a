"""Estimates each kernel's share of a network's time, and which kernels are too small for a trial.

Nothing is measured: the estimate counts operations and bytes.
"""

import math
from collections.abc import Sequence

from retune.compiler.core.dtype import item_bytes
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.reads import needs_multi_level_tiling
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import ComputeOp

SMALL_SHARE = 0.005
"""A kernel without data reuse and with a smaller share of a network's time gets no trials."""

# Two multiply-adds of eight float32 lanes (AVX2) are 32 operations; a core gets some 30 GB/s from memory at 4 GHz.
_OPERATIONS_PER_CYCLE = 32.0
_BYTES_PER_CYCLE = 8.0


def are_small(tasks: Sequence[SearchTask], weights: Sequence[int]) -> tuple[bool, ...]:
    """Which tasks have no data reuse and an estimated share below `SMALL_SHARE`. Untested candidates of the search come
    near what trials would find for them.
    """
    times = [
        weight * sum(share * _cycles(dag) for dag, share in task.fixed_dags)
        for task, weight in zip(tasks, weights, strict=True)
    ]
    first = [task.fixed_dags[0][0] for task in tasks]
    return tuple(
        spent < SMALL_SHARE * max(sum(times), 1.0)
        and not any(needs_multi_level_tiling(dag, op) for op in range(len(dag.ops)))
        for dag, spent in zip(first, times, strict=True)
    )


def shares_of(dags: Sequence[ComputeDAG], weights: Sequence[int]) -> tuple[float, ...]:
    """The share of each kernel, called `weights[i]` times, in the time of all."""
    times = [weight * _cycles(dag) for dag, weight in zip(dags, weights, strict=True)]
    return tuple(spent / max(sum(times), 1.0) for spent in times)


def _cycles(dag: ComputeDAG) -> float:
    """Cycles of one core: operations at the rate of multiply-adds or bytes at the rate of memory, the longer."""
    return max(dag.flop_count / _OPERATIONS_PER_CYCLE, moved_bytes(dag) / _BYTES_PER_CYCLE)


def expected_bytes(task: SearchTask) -> int:
    """The `moved_bytes` of a call; of an expected call, if the task has shapes."""
    return int(sum(weight * moved_bytes(dag) for dag, weight in task.fixed_dags))


def moved_bytes(dag: ComputeDAG) -> int:
    """The least bytes that a call reads and writes: those of all inputs and outputs. Of an input with fewer reads than
    elements, such as an embedding's table, only the elements read count.
    """
    reads = [0.0] * len(dag.ops)
    for number, op in enumerate(dag.ops):
        # A function may read anything.
        points = math.inf
        if isinstance(op, ComputeOp):
            points = math.prod(axis.extent for axis in (*op.axes, *op.reduce_axes))
        for source, _ in dag.reads[number]:
            reads[source] += points
    read = sum(
        min(math.prod(tensor.shape), reads[dag.id_of(tensor)]) * item_bytes(tensor.dtype) for tensor in dag.inputs
    )
    return int(read) + sum(math.prod(tensor.shape) * item_bytes(tensor.dtype) for tensor in dag.outputs)
