"""Legality masks of CPU programs: which of B programs of a sketch may be proposed.

`SketchSpace.legal` calls it. A `StageNest` is one statement in all B programs: an extent is a number, or an array (B,)
where the programs differ, as is a choice of `LoopChoices`. Limits become masks; nothing raises. Which loops may run in
parallel or in vectors is decided before, in `retune.compiler.search.space`.

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

_RESERVED_STACK = 8192
"""Bytes of stack left to the code generator for accumulators and spilled registers."""


def legal(
    nests: Sequence[StageNest], choices: LoopChoices, hardware: HardwareParams, options: SearchOptions, count: int
) -> Mask:
    """Mask (B,) of the programs whose local buffers fit the stack and whose register tiles are not hopelessly large.

    `nests` are the statements of the programs, `count` is B.
    """
    # Buffers of attached stages are on the stack of each thread; a larger one would overflow it.
    stack = np.full(count, float(_RESERVED_STACK))
    accepted = np.ones(count, dtype=np.bool_)
    for nest in nests:
        if nest.attached:
            elements = np.ones(count)
            for extent in nest.write.shape:
                elements = elements * extent
            stack = stack + elements * held_bytes(nest)
        accepted &= (
            register_tile(nest, choices.vector.get(nest.stage, 0), hardware, count) <= options.max_register_vectors
        )
    return np.asarray(accepted & (stack <= hardware.stack_bytes))


def promising(
    nests: Sequence[StageNest], choices: LoopChoices, hardware: HardwareParams, options: SearchOptions, count: int
) -> Mask:
    """Mask (B,) of the programs whose register tiles and operands fit the registers, whose vectors read a single group
    of a convolution, and whose code is short. Parameters as of `legal`.
    """
    accepted = np.ones(count, dtype=np.bool_)
    for nest in nests:
        vector, unroll = choices.vector.get(nest.stage, 0), choices.unroll.get(nest.stage, 0)
        # One accumulator too many is stored and loaded in every step of the innermost loop.
        accepted &= tile_registers(nest, vector, hardware, count) <= hardware.registers
        accepted &= ~_crosses_groups(nest, vector, hardware, count)
        accepted &= straight_line(nest, vector, unroll, hardware, count) <= options.max_straight_line
    return accepted


def _crosses_groups(nest: StageNest, vector: Number, hardware: HardwareParams, count: int) -> Mask:
    """Mask (B,) of the programs in which a vector of results reads several groups of a grouped convolution."""
    none_cross = np.zeros(count, dtype=np.bool_)
    if not nest.op.reduce_axes or not nest.op.axes:
        return none_cross
    loop, group_columns = nest.loops[-1], shared_columns(nest.op, hardware)
    # Vectors along another axis read the same group.
    if group_columns == nest.op.axes[-1].extent or loop.key not in nest.write.index[-1].terms:
        return none_cross
    return np.broadcast_to((np.asarray(vector) != 0) & (group_columns % np.asarray(loop.extent) != 0), (count,))
