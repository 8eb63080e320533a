"""Legality masks of B CPU programs: which of them may be proposed. Limits are masks; nothing raises.

`legal` rejects programs that cannot run or are hopeless on any machine. `promising`, the static filters, also rejects
programs known to be slow before they are built: a step of the innermost loop needs more vector registers than there
are, its vectors cross the groups of a grouped convolution, or the unrolled code exceeds what the compiler and the
instruction cache can handle.
"""

from collections.abc import Sequence

import numpy as np

from retune.compiler.core.target import HardwareParams
from retune.compiler.schedule.choices import LoopChoices
from retune.compiler.schedule.default.product_tiles import shared_columns
from retune.compiler.schedule.state import Number
from retune.compiler.schedule.statements import StageNest
from retune.compiler.search.genome import Mask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.register_tile import held_bytes, register_tile, straight_line, tile_registers

_RESERVED = 8192
"""Bytes of stack left to the code generator for accumulators and spilled registers."""


def legal(
    nests: Sequence[StageNest], choices: LoopChoices, hardware: HardwareParams, options: SearchOptions, count: int
) -> Mask:
    """Mask (B,): local buffers fit the stack, and no register tile is hopelessly large."""
    # Buffers of attached stages are on the stack of each thread; a larger one would overflow it.
    stack = np.full(count, float(_RESERVED))
    good = np.ones(count, dtype=np.bool_)
    for nest in nests:
        if nest.attached:
            elements = np.ones(count)
            for extent in nest.write.shape:
                elements = elements * extent
            stack = stack + elements * held_bytes(nest)
        good &= register_tile(nest, choices.vector.get(nest.stage, 0), hardware, count) <= options.max_register_vectors
    return np.asarray(good & (stack <= hardware.stack_bytes))


def promising(
    nests: Sequence[StageNest], choices: LoopChoices, hardware: HardwareParams, options: SearchOptions, count: int
) -> Mask:
    """Mask (B,): register tiles and operands fit the registers, vectors read one group, and the code is short."""
    good = np.ones(count, dtype=np.bool_)
    for nest in nests:
        vector, unroll = choices.vector.get(nest.stage, 0), choices.unroll.get(nest.stage, 0)
        # One accumulator too many is stored and loaded in every step of the innermost loop.
        good &= tile_registers(nest, vector, hardware, count) <= hardware.registers
        good &= ~_crosses_groups(nest, vector, hardware, count)
        good &= straight_line(nest, vector, unroll, hardware, count) <= options.max_straight_line
    return good


def _crosses_groups(nest: StageNest, vector: Number, hardware: HardwareParams, count: int) -> Mask:
    """Mask (B,): a vector of results reads several groups of a grouped convolution."""
    nothing = np.zeros(count, dtype=np.bool_)
    if not nest.op.reduce_axes or not nest.op.axes:
        return nothing
    loop, alike = nest.loops[-1], shared_columns(nest.op, hardware)
    # Vectors along another axis read the same group.
    if alike == nest.op.axes[-1].extent or loop.key not in nest.write.index[-1].terms:
        return nothing
    return np.broadcast_to((np.asarray(vector) != 0) & (alike % np.asarray(loop.extent) != 0), (count,))
