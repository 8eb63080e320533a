"""In: bounds of B programs whose loops are bound to GPU threads. Out: which of them the GPU can run.

Always: limits are masks, nothing raises; a program that passes fits the block limits of the hardware parameters.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from compiler.schedule.bounds import Loop, StageNest
from compiler.schedule.state import Annotation, Number
from compiler.search.genome import Mask
from compiler.search.register_tile import Counts, itemsize, point_bytes
from compiler.search.sketch_rules.facts import SHARED
from compiler.target import HardwareParams


def gpu_legal(nests: Sequence[StageNest], hardware: HardwareParams, count: int) -> Mask:
    """Mask (B,): what every kernel, one a stage with a nest of its own, asks of a block.

    Checked are the threads (at least a warp where tiles are bound, unless there are hardly more points than that), the
    virtual threads, the bytes of shared and of local memory, and the width of a vector access.
    """
    good = np.ones(count, dtype=np.bool_)
    for kernel in _kernels(nests):
        good &= _fits(kernel, hardware, count)
    return good


def _kernels(nests: Sequence[StageNest]) -> Iterable[list[StageNest]]:
    """The statements of every kernel: a root stage and what is computed inside its loops."""
    found: dict[int, list[StageNest]] = {}
    for nest in nests:
        found.setdefault(nest.loops[0].key[0] if nest.loops else nest.stage, []).append(nest)
    return found.values()


def _fits(kernel: Sequence[StageNest], hardware: HardwareParams, count: int) -> Mask:
    threads = np.ones(count, dtype=np.int64)
    shared, local = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    good = np.ones(count, dtype=np.bool_)
    for nest in kernel:
        own = nest.loops[len(nest.loops) - nest.own :]
        threads = np.maximum(threads, _product(own, Annotation.THREAD_X, count))
        if nest.attached:
            size = np.full(count, point_bytes(nest), dtype=np.int64)
            for extent in nest.write.shape:
                size = size * extent
            if nest.op.name.endswith(SHARED):
                shared = shared + size
            else:
                local = local + size * _product(nest.loops, Annotation.VTHREAD, count)
        lanes = _product(own, Annotation.VECTORIZE, count)
        good &= (lanes == 1) | (lanes * itemsize(nest) <= hardware.vector_unit_bytes)
        if any(loop.annotation is Annotation.VTHREAD for loop in own):
            good &= _product(own, Annotation.VTHREAD, count) <= hardware.max_vthread_extent
            good &= _enough_threads(kernel, _product(own, Annotation.THREAD_X, count), hardware)
    good &= threads <= hardware.max_threads_per_block
    good &= shared <= hardware.max_shared_memory_per_block
    return np.asarray(good & (local <= hardware.max_local_memory_per_block))


def _enough_threads(kernel: Sequence[StageNest], threads: Counts, hardware: HardwareParams) -> Mask:
    """Whether a block fills a warp, or its stage has hardly more points than a warp has threads."""
    root = next(nest for nest in kernel if not nest.attached)
    points = 1
    for axis in (*root.op.axes, *root.op.reduce_axes):
        points *= axis.extent
    return np.asarray((threads >= hardware.warp_size) | (points <= 2 * hardware.warp_size))


def _product(loops: Sequence[Loop], annotation: Annotation, count: int) -> Counts:
    """How many turns the loops with an annotation make together, (B,)."""
    total: Number = np.ones(count, dtype=np.int64)
    for loop in loops:
        if loop.annotation is annotation:
            total = total * loop.extent
    return np.asarray(total)
