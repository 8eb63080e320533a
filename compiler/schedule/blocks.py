"""Blocks of symbolic programs: programs of fixed extents that compute a part of every result.

A block computes a few neighbors along each parallel class of axes, from the class's *origin* on; along other classes it
computes everything, with `MOST` iterations. Loops, schedules and passes see fixed extents, and logical indices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import BinaryOp, Expr, Var, binary, dim_expr
from retune.compiler.ir.stmt import MOST_ITERATIONS
from retune.compiler.ir.visit import substitute, transform
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.te.reduction import Axis
from retune.compiler.te.symbols import rebuild
from retune.compiler.te.tensor import ComputeOp, PlaceholderOp, Tensor, TensorRead

MOST = MOST_ITERATIONS
"""The extent of axes that are no part of a block: what is true of all their points is true of the first few, too."""
MARK = "~"
"""Between the name of an axis and the number of its class."""


@dataclass(frozen=True, slots=True)
class BlockSize:
    """The `points` of a block along a class. Points past the end of a block that is `clamped` are the last point once
    more, with the same results.
    """

    points: int
    is_clamped: bool = False

    def point(self, known: AxisClass, index: Expr) -> Expr:
        """The point at `index` of a block of this size."""
        point = origin_of(known) + index
        if not self.is_clamped or known.extent is None:
            return point
        return binary(BinaryOp.MIN, point, dim_expr(known.extent - 1))


def origin_of(known: AxisClass) -> Var:
    """The index of a block's first point along a class."""
    return Var(f"origin{MARK}{known.number}")


def stand_in(extent: int, numbers: dict[str, int]) -> int:
    """A number for a symbolic extent of an array. No loop, and no other extent, has it, so no analysis takes two
    dimensions to be equal by chance; it is odd, so none proves an alignment by it. `numbers` has those so far.
    """
    if not isinstance(extent, Dim):
        return extent
    return numbers.setdefault(str(extent), MOST + 2 * len(numbers) + 1)


def block_of(program: SymbolicProgram, sizes: Mapping[AxisClass, BlockSize], numbers: dict[str, int]) -> list[Tensor]:
    """The tensors of a block of `sizes` along the parallel classes; `numbers` are for `stand_in`. Inputs have
    their whole shapes, and are read relative to the origins where that is the same for all reads.
    """

    def in_block(axis: Axis, known: AxisClass) -> Axis:
        points = sizes[known].points if known.is_parallel else MOST
        return Axis(f"{axis.name}{MARK}{known.number}", points, axis.kind)

    def shape_of(op: PlaceholderOp) -> tuple[int, ...]:
        return tuple(stand_in(extent, numbers) for extent in op.shape)

    return rebuild(program.tensors, shape_of, program.axis_rule(in_block), partial(_shift, program, sizes))


def _shift(program: SymbolicProgram, sizes: Mapping[AxisClass, BlockSize], op: ComputeOp) -> Expr:
    """The body with absolute points, origin + axis, except where reads are relative to the origin."""
    relative: dict[Expr, Expr] = {}

    def mark(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        indices = list(node.indices)
        for dim, known in enumerate(program.views(node.tensor)):
            index = indices[dim]
            if known is not None and isinstance(index, Axis):
                marked = Var(f"{index.name}{MARK}relative")
                relative[marked], indices[dim] = index, marked
        return TensorRead(node.tensor, tuple(indices))

    marked = transform(op.body, mark)
    parallel = [(axis, program.parallel_class(op, axis)) for axis in op.axes]
    absolute: dict[Expr, Expr] = {
        axis: sizes[known].point(known, axis) for axis, known in parallel if known is not None
    }
    return substitute(substitute(marked, absolute), relative)


def class_in(name: str, classes: Sequence[AxisClass]) -> AxisClass | None:
    """The class in whose name a block's axis, or a loop over it, is called `name`."""
    _, mark, number = name.partition(MARK)
    return classes[int(number)] if mark and number.isdigit() else None
