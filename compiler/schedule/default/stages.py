"""Axes, loops and sizes of stages, for default schedules."""

from math import prod

from retune.compiler.core.dtype import item_bytes
from retune.compiler.schedule.state import State
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp

NEAR_BYTES = 1 << 18
"""Half of the smallest second-level cache of today's x86 cores: the part of a factor that stays there."""


def axes_of(state: State, stage_id: int) -> tuple[Axis, ...]:
    op = state.stages[stage_id].op
    assert isinstance(op, ComputeOp), "only what is computed has axes"
    return op.axes


def axis_name(loop: str) -> str:
    return loop.partition(".")[0]


def loop_number(state: State, stage_id: int, name: str) -> int:
    return next(number for number, loop in enumerate(state.stages[stage_id].iters) if loop.name == name)


def extent_of(state: State, stage_id: int, name: str) -> int:
    extent = state.stages[stage_id].iters[loop_number(state, stage_id, name)].extent
    assert isinstance(extent, int), "the loops of a default schedule have extents"
    return extent


def bytes_of(state: State, stage_id: int) -> int:
    """The bytes of a stage's result, or of an input."""
    source = state.dag.ops[stage_id]
    return prod(source.shape) * item_bytes(source.dtypes[0])
