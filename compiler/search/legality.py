"""In: bounds and loop choices of B programs. Out: which of them may be proposed. Always: limits are masks, nothing
raises.
"""

from collections.abc import Sequence

import numpy as np

from compiler.schedule.bounds import StageNest
from compiler.schedule.choices import LoopChoices
from compiler.search.genome import Mask
from compiler.search.options import SearchOptions
from compiler.search.register_tile import point_bytes, register_tile
from compiler.target import HardwareParams

_RESERVED = 8192
"""Bytes of stack left to the code generator for accumulators and spilled registers."""


def legal(
    nests: Sequence[StageNest], choices: LoopChoices, hardware: HardwareParams, options: SearchOptions, count: int
) -> Mask:
    """Mask (B,): local buffers fit the stack, and no register tile is hopelessly large."""
    stack = np.full(count, float(_RESERVED))
    good = np.ones(count, dtype=np.bool_)
    for nest in nests:
        if nest.attached:
            elements = np.ones(count)
            for extent in nest.write.shape:
                elements = elements * extent
            stack = stack + elements * point_bytes(nest)
        good &= register_tile(nest, choices.vector.get(nest.stage, 0), hardware, count) <= options.max_register_vectors
    return np.asarray(good & (stack <= hardware.stack_bytes))
