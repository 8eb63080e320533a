"""Sizes of blocks to try for a kernel with symbolic extents, and full blocks as programs of fixed extents."""

from collections.abc import Mapping
from itertools import product

from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.dims import Dim
from retune.compiler.lower.block_plan import BlockPlan
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.schedule.blocks import BlockSize
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Block
from retune.compiler.te.reduction import Axis
from retune.compiler.te.symbols import rebuild, symbols_of
from retune.compiler.te.tensor import ComputeOp, PlaceholderOp, Tensor

_HEIGHTS = (1, 2, 4, 8, 16, 24, 32, 48, 96)
"""Points of a block along rows: those of register tiles, and multiples, which share a strip of the other factor."""
_COLUMNS = (16, 32, 64, 128, 256)
"""Points of a block along the axis of neighbors in memory."""
_LEAST, _MOST = 1 / 2, 16
"""The range of sizes that are tried, in those of the default."""

Sizes = Mapping[AxisClass, BlockSize]


def sizes_to_try(program: SymbolicProgram, hardware: HardwareParams) -> list[Sizes]:
    """Sizes of blocks along the parallel classes, the default first."""
    if not any(known.is_parallel for known in program.classes) or any(
        known.extent is None for known in program.classes
    ):
        return []
    plan = BlockPlan.of(program, hardware, {})
    symbolic = [known for known in (*plan.outer, plan.inner) if known is not None and isinstance(known.extent, Dim)]
    rows = [known for known in symbolic if known is not plan.columns]
    # At most one outer axis has blocks of several sizes.
    tall = max(rows, key=lambda known: (plan.sizes[known].points, rows.index(known)), default=None)
    varied = {
        known: _COLUMNS if known is plan.columns else _HEIGHTS for known in symbolic if known in (tall, plan.columns)
    }
    usual = {known: size.points for known, size in plan.sizes.items()}
    near = {
        known: [usual[known], *(size for size in menu if usual[known] * _LEAST <= size <= usual[known] * _MOST)]
        for known, menu in varied.items()
    }
    combinations = [dict(zip(near, points, strict=True)) for points in product(*near.values())]
    different = {str(points): points for points in ({**usual, **own} for own in combinations)}
    return [{known: BlockSize(size) for known, size in points.items()} for points in different.values()]


def axis_of(program: SymbolicProgram, known: AxisClass) -> tuple[int, int]:
    """The last stage with an axis of the class, and the number of the axis, see `SymbolicProgram.axis`."""
    return max(
        (stage, number)
        for stage, op in enumerate(ComputeDAG(program.tensors).ops)
        if isinstance(op, ComputeOp)
        for number, axis in enumerate((*op.axes, *op.reduce_axes))
        if (op, axis.name) in known.points
    )


def block_steps(program: SymbolicProgram, sizes: Sizes) -> tuple[Block, ...]:
    """The steps of these sizes along symbolic axes."""
    symbolic = ((known, size) for known, size in sizes.items() if isinstance(known.extent, Dim))
    return tuple(Block(*axis_of(program, known), size.points) for known, size in symbolic)


class _NoBlockError(Exception):
    """Ends the making of a block that has no fixed extent along an axis."""


def fixed_block(program: SymbolicProgram, sizes: Sizes) -> ComputeDAG | None:
    """A full block as a program of its own, with the stages of `schedule/blocks.py`; None where an axis of the block is
    symbolic, or its indices depend on its place.
    """

    def shape_of(op: PlaceholderOp) -> tuple[int, ...]:
        views = program.views(Tensor(op, 0))
        return tuple(
            extent if known is None else sizes[known].points for extent, known in zip(op.shape, views, strict=True)
        )

    def in_block(axis: Axis, known: AxisClass) -> Axis:
        if not known.is_parallel:
            raise _NoBlockError
        return Axis(axis.name, sizes[known].points, axis.kind)

    try:
        tensors = rebuild(program.tensors, shape_of, program.axis_rule(in_block))
    except _NoBlockError:
        return None
    return None if symbols_of(tensors) else ComputeDAG(tensors)
