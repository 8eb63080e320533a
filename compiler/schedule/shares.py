"""Estimates which share of a network's time each of its kernels takes, and which are too small to be worth a trial.

Nothing is measured: the estimate counts operations and bytes.
"""

import math
from collections.abc import Sequence

from retune.compiler.dtype import item_bytes
from retune.compiler.schedule.access import needs_multi_level_tiling
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import ComputeOp

SMALL_SHARE = 0.005
"""A kernel without reuse of data that takes less than this share of a network's time gets no trials."""

# Two multiply-adds of eight float32 lanes (AVX2) are 32 operations; a core gets some 30 GB/s from memory at 4 GHz.
_OPERATIONS_PER_CYCLE = 32.0
_BYTES_PER_CYCLE = 8.0


def are_small(tasks: Sequence[SearchTask], weights: Sequence[int]) -> tuple[bool, ...]:
    """Which tasks have no reuse of data and take, roughly, less than `SMALL_SHARE` of the network's time. Top
    candidates of the search serve them: those come near what trials would find.
    """
    return tuple(
        share < SMALL_SHARE and not any(needs_multi_level_tiling(task.dag, op) for op in range(len(task.dag.ops)))
        for task, share in zip(tasks, shares_of([task.dag for task in tasks], weights), strict=True)
    )


def shares_of(dags: Sequence[ComputeDAG], weights: Sequence[int]) -> tuple[float, ...]:
    """The share that each kernel, called so often, takes of the time of all of them."""
    times = [weight * _cycles(dag) for dag, weight in zip(dags, weights, strict=True)]
    return tuple(spent / max(sum(times), 1.0) for spent in times)


def _cycles(dag: ComputeDAG) -> float:
    """Cycles of one core: operations at the rate of multiply-adds, or bytes at that of memory, whichever are more."""
    return max(dag.flop_count / _OPERATIONS_PER_CYCLE, moved_bytes(dag) / _BYTES_PER_CYCLE)


def moved_bytes(dag: ComputeDAG) -> int:
    """The bytes of all inputs and outputs: what a call has to read and write at least. Of an input that is read fewer
    times than it has elements, such as an embedding's table, only as many elements count.
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
