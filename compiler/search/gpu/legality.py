"""Masks of the GPU programs that the GPU can run, and that are worth running.

Limits are masks and nothing raises. They agree with lowering: a program is rejected for the same reason there, or not
at all (`retune.compiler.lower.gpu.limits`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from retune.compiler.core.gpu_facts import MOST_REGISTERS, GpuFacts
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.kernel import WORD
from retune.compiler.ir.tensor_core import COLUMNS, ROWS, WARP
from retune.compiler.lower.gpu.limits import Limit, most_of
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.statements import StageNest
from retune.compiler.schedule.tensor_nests import fragments_of, thread_bytes
from retune.compiler.search.genome import Mask
from retune.compiler.search.gpu.kernels import DeviceKernel, iterations, kernels_of, own_loops
from retune.compiler.search.register_tile import Counts, itemsize

# The least that a thread needs: a program with more than there are spills certainly.
# `retune.compiler.model.features.gpu` has the number to expect, from which occupancy follows.
_LEAST_OTHER_REGISTERS = 32
"""Registers of a thread beyond its buffers: operands, addresses, loop counters."""
_LEAST_OTHER_TENSOR_REGISTERS = 40
"""Registers of a thread beyond the sums and fragments of a product on tensor cores."""
REASONS: tuple[Limit | None, ...] = (None, *Limit)
"""Meaning of the numbers of `gpu_refusals`."""


def gpu_legal(nests: Sequence[StageNest], hardware: HardwareParams, count: int) -> Mask:
    """Mask (B,): the programs that keep the limits of a block and are not hopeless."""
    return np.asarray((gpu_refusals(nests, hardware, count) == 0) & gpu_promising(nests, hardware, count))


def gpu_refusals(nests: Sequence[StageNest], hardware: HardwareParams, count: int) -> npt.NDArray[np.int8]:
    """For every program (B,) the first limit that its first offending kernel breaks, as an index of `REASONS`."""
    reasons = np.zeros(count, dtype=np.int8)
    most = most_of(hardware)
    for kernel in kernels_of(nests, count, hardware.gpu):
        demand = kernel.demand()
        for number, limit in enumerate(REASONS):
            if limit is not None:
                reasons = np.where((reasons == 0) & (demand[limit] > most[limit]), np.int8(number), reasons)
    return reasons


def gpu_promising(nests: Sequence[StageNest], hardware: HardwareParams, count: int) -> Mask:
    """Mask (B,): no vector is longer than one access. A block of tiles fills a warp, unless there are hardly more
    points, and a thread's buffers fit its registers.
    """
    good = np.ones(count, dtype=np.bool_)
    for nest in nests:
        lanes = iterations(own_loops(nest), (Annotation.VECTORIZE,), count)
        good &= (lanes == 1) | (lanes * itemsize(nest) <= hardware.vector_unit_bytes)
    for kernel in kernels_of(nests, count, hardware.gpu):
        for nest in kernel.nests:
            if any(loop.annotation is Annotation.VTHREAD for loop in own_loops(nest)):
                good &= _enough_threads(kernel, iterations(own_loops(nest), (Annotation.THREAD_X,), count), hardware)
        if kernel.product is not None:
            good &= _tensor_promising(kernel.nests, kernel.product, hardware.gpu, count)
        elif any(loop.annotation is Annotation.VTHREAD for nest in kernel.nests for loop in own_loops(nest)):
            # A thread's local buffers live in registers of four bytes.
            registers = -(-kernel.memory[1] // WORD) + _LEAST_OTHER_REGISTERS
            good &= registers <= hardware.gpu.most_registers(kernel.threads)
    return good


def _enough_threads(kernel: DeviceKernel, threads: Counts, hardware: HardwareParams) -> Mask:
    """Whether a block fills a warp, or its stage has hardly more points than a warp has threads."""
    root = next(nest for nest in kernel.nests if not nest.attached)
    points = 1
    for axis in (*root.op.axes, *root.op.reduce_axes):
        points *= axis.extent
    # Ansor's rule for tiles: less than a warp only where there are at most two warps of points.
    return np.asarray((threads >= hardware.warp_size) | (points <= 2 * hardware.warp_size))


def _tensor_promising(kernel: Sequence[StageNest], product: StageNest, facts: GpuFacts, count: int) -> Mask:
    """Mask (B,): all stages around a product on tensor cores have the same warps, every shared tile covers the warps'
    fragments, and sums and fragments fit into registers.
    """
    root = next(nest for nest in kernel if not nest.attached)
    warps = iterations(own_loops(root), (Annotation.THREAD_Y,), count)
    good: Mask = np.ones(count, dtype=np.bool_)
    for nest in kernel:
        if nest.attached and nest is not product:
            good &= iterations(own_loops(nest), (Annotation.THREAD_Y,), count) == warps
    rows, columns = fragments_of(product, count)
    good &= _covers(kernel, root, product, rows, columns)
    registers = thread_bytes(product, facts, count) // WORD + _LEAST_OTHER_TENSOR_REGISTERS
    return np.asarray(good & (registers <= MOST_REGISTERS) & (registers * warps * WARP <= facts.registers))


def _covers(kernel: Sequence[StageNest], root: StageNest, product: StageNest, rows: Counts, columns: Counts) -> Mask:
    """Whether the shared tiles cover the warps' fragments and were not cut at the end of a matrix."""
    good: Mask = np.ones(len(rows), dtype=np.bool_)
    warps = [loop.extent for loop in root.loops if loop.annotation is Annotation.THREAD_Y]
    for extent, tiles, size, axis in ((warps[0], rows, ROWS, "m"), (warps[1], columns, COLUMNS, "n")):
        for nest in kernel:
            for dim, own in enumerate(nest.op.axes if nest.attached and nest is not product else ()):
                if own.name == axis:
                    good &= np.asarray(nest.write.shape[dim] == extent * tiles * size)
    return good
