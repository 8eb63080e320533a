"""In: bounds and loop choices of B programs. Out: which of them may be proposed. Always: limits are masks, nothing
raises.
"""

from collections.abc import Sequence

import numpy as np

from compiler.schedule.bounds import StageNest
from compiler.schedule.choices import LoopChoices
from compiler.schedule.state import IterKind
from compiler.search.genome import Mask
from compiler.search.options import SearchOptions
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
            stack = stack + elements * _itemsize(nest)
        good &= register_tile(nest, choices, hardware, count) <= options.max_register_vectors
    return np.asarray(good & (stack <= hardware.stack_bytes))


def register_tile(nest: StageNest, choices: LoopChoices, hardware: HardwareParams, count: int) -> np.ndarray:
    """Accumulators (B,) of a statement: its spatial loops inside the innermost reduction, the vector loop in registers;
    1 without reduction.
    """
    lanes = max(1, hardware.vector_unit_bytes // _itemsize(nest))
    tile = np.ones(count)
    outside = np.zeros(count, dtype=np.bool_)
    first = True
    vector = np.asarray(choices.vector.get(nest.stage, 0)) > 0
    for loop in reversed(nest.loops[len(nest.loops) - nest.own :]):
        extent = np.asarray(loop.extent)
        if loop.kind is IterKind.REDUCTION:
            outside = outside | (extent > 1)
            continue
        turns = np.where(vector, -(-extent // lanes), extent) if first else extent
        tile = np.where(outside, tile, tile * turns)
        first = False
    return np.where(outside, tile, 1.0)


def _itemsize(nest: StageNest) -> int:
    return int(np.dtype(nest.op.dtype).itemsize)
