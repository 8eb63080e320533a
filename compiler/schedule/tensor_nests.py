"""The tensor-core product among the statements of a kernel, and the memory that it and its pipelines use.

It predicts what `retune.compiler.lower.gpu` makes of each of B programs, in arrays (B,).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.tensor_core import GROUP_WARPS, INSTRUCTIONS, SUM_ELEMENTS, Instruction
from retune.compiler.schedule.contraction import KIND
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.statements import StageNest

Counts = npt.NDArray[np.int64]

TILES_WITHOUT_BREAK = 4
"""From this number of tiles on a warpgroup starts a multiplication while the previous multiplication is in flight."""

_SUM_BYTES = 4


def product_of(kernel: Sequence[StageNest]) -> StageNest | None:
    """The statement of a kernel on tensor cores, if any."""
    for nest in kernel:
        if any(loop.annotation is Annotation.TENSORIZE for loop in nest.loops[len(nest.loops) - nest.own :]):
            return nest
    return None


def instruction_of(product: StageNest) -> Instruction:
    """The instruction that multiplies its fragments."""
    return INSTRUCTIONS[product.op.attrs[KIND]]


def fragments_of(product: StageNest, count: int) -> tuple[Counts, Counts]:
    """Rows and columns of a warp's part, in fragments: the loops around the three of an instruction."""
    rows, columns = (np.asarray(loop.extent * np.ones(count, dtype=np.int64)) for loop in product.loops[-5:-3])
    return rows, columns


def copies_of(nest: StageNest, kernel: Sequence[StageNest], count: int) -> Counts:
    """The number of copies of the buffer of a statement of a kernel: in a pipelined loop the iterations whose copies
    are in flight or ready, but no more than the loop has. A loop of one iteration needs no copies.
    """
    copies = np.ones(count, dtype=np.int64)
    outer_keys = {loop.key for loop in nest.loops[: len(nest.loops) - nest.own]}
    for statement in kernel:
        if statement.pipeline is not None and (statement.stage, statement.pipeline[0]) in outer_keys:
            copies = copies * pipeline_depth(statement, count)
    return np.asarray(copies)


def pipeline_depth(nest: StageNest, count: int) -> Counts:
    """Iterations of the pipelined loop of a statement whose copies are in flight or ready; 1 without a pipeline."""
    if nest.pipeline is None:
        return np.ones(count, dtype=np.int64)
    name, depth = nest.pipeline
    iterations = next(loop.extent for loop in nest.loops if loop.key == (nest.stage, name))
    return np.asarray(np.minimum(iterations, depth) * np.ones(count, dtype=np.int64))


def steps_of(product: StageNest, count: int) -> Counts:
    """Steps of an instruction's depth in one iteration: the unrolled loop around the loops over fragments."""
    loop = product.loops[-6] if len(product.loops) > 5 else None
    steps = loop.extent if loop is not None and loop.annotation is Annotation.UNROLL else 1
    return np.asarray(steps * np.ones(count, dtype=np.int64))


def in_groups(product: StageNest, facts: GpuFacts, count: int) -> npt.NDArray[np.bool_]:
    """Whether the warps of a block multiply in groups of four along the rows."""
    # The condition of `GroupBuilder`, for programs of the sketch.
    outer = product.loops[: len(product.loops) - product.own]
    warps = [loop.extent for loop in outer if loop.annotation is Annotation.THREAD_Y]
    if not facts.group_tensor or instruction_of(product).packed == 1 or len(warps) != 2:
        return np.zeros(count, dtype=np.bool_)
    return np.asarray(np.asarray(warps[0]) % GROUP_WARPS == 0) & np.ones(count, dtype=np.bool_)


def fragment_sets(product: StageNest, facts: GpuFacts, count: int) -> Counts:
    """Sets of registers for fragments: two if loaded a step ahead, none where groups of warps multiply."""
    # The condition of `double_buffer_registers`.
    ahead = (pipeline_depth(product, count) > 1) & (steps_of(product, count) % 2 == 0)
    return np.where(in_groups(product, facts, count), 0, 1 + ahead)


def thread_bytes(product: StageNest, facts: GpuFacts, count: int) -> Counts:
    """Bytes of a thread for sums and for the fragments that are loaded and multiplied."""
    rows, columns = fragments_of(product, count)
    kind = instruction_of(product)
    factors = (rows * kind.left_elements + columns * kind.right_elements) * fragment_sets(product, facts, count)
    return np.asarray(rows * columns * SUM_ELEMENTS * _SUM_BYTES + factors * item_bytes(kind.dtype))
