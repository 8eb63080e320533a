"""Masks of the tensor-core programs that are worth measuring.

Limits are masks and nothing raises. Programs that pass have the same warps in every stage and their sums in registers.
"""

from collections.abc import Sequence

import numpy as np

from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.tensor_core import COLUMNS, ROWS, SUM_ELEMENTS, WARP
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.statements import StageNest
from retune.compiler.schedule.tensor_nests import fragment_sets, fragments_of, instruction_of
from retune.compiler.search.genome import Mask
from retune.compiler.search.gpu.kernels import iterations, own_loops
from retune.compiler.search.register_tile import Counts

_REGISTERS = 255
"""Per thread; this and the file size are from the CUDA C++ Programming Guide."""
_REGISTER_FILE = 1 << 16
"""Shared by all threads of a block."""
_OTHER_REGISTERS = 40
"""Registers of a thread beyond sums and fragments: addresses, loop counters."""


def tensor_promising(kernel: Sequence[StageNest], product: StageNest, facts: GpuFacts, count: int) -> Mask:
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
    good &= _covered(kernel, root, product, rows, columns)
    kind = instruction_of(product)
    fragments = (rows * kind.left_elements + columns * kind.right_elements) // kind.packed
    values = rows * columns * SUM_ELEMENTS + fragments * fragment_sets(product, facts, count)
    registers = values + _OTHER_REGISTERS
    return np.asarray(good & (registers <= _REGISTERS) & (registers * warps * WARP <= _REGISTER_FILE))


def _covered(kernel: Sequence[StageNest], root: StageNest, product: StageNest, rows: Counts, columns: Counts) -> Mask:
    """Whether the shared tiles cover the warps' fragments and were not cut at the end of a matrix."""
    good: Mask = np.ones(len(rows), dtype=np.bool_)
    warps = [loop.extent for loop in root.loops if loop.annotation is Annotation.THREAD_Y]
    for extent, tiles, size, axis in ((warps[0], rows, ROWS, "m"), (warps[1], columns, COLUMNS, "n")):
        for nest in kernel:
            for dim, own in enumerate(nest.op.axes if nest.attached and nest is not product else ()):
                if own.name == axis:
                    good &= np.asarray(nest.write.shape[dim] == extent * tiles * size)
    return good
