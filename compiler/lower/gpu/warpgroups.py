"""Lowers a matrix product to the instructions of warpgroups, whose four warps are adjacent along its rows.

A product that does not fit is lowered for single warps, see `TensorBuilder`. The sums are in the same registers; the
factors are read from shared memory, where lines of up to 64 halves are swizzled, see `GroupLayout`. The rows of a left
tile are stored in the order in which an instruction takes them from the four warps: 16 of each. Warps are numbered
along the rows first, so that four consecutive warps make a group.

    before: for k: (shared a, b: a = …; b = …; for k i j: tensorize i j k: c[i, j] += a[i, k] * b[k, j])
    after:  c = 0; for k: (shared a, b: a = …; b = …; proxy fence; group c += a * b; group wait)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from retune.compiler.ir.affine import affine
from retune.compiler.ir.expr import Buffer, Expr, const
from retune.compiler.ir.interval import as_index
from retune.compiler.ir.simplify import simplify
from retune.compiler.ir.stmt import LoopKind, Stmt, block
from retune.compiler.ir.tensor_core import (
    COLUMNS,
    GROUP_COLUMNS,
    GROUP_ROWS,
    GROUP_WARPS,
    INSTRUCTIONS,
    ROWS,
    SWIZZLED,
    WARP,
    GroupLayout,
    GroupShape,
    ProxyFence,
    WarpgroupMma,
    WarpgroupWait,
)
from retune.compiler.lower.gpu.tensor_cores import FRAGMENT_LOOPS, Fragments, TensorBuilder
from retune.compiler.lower.nests import NestLoop, known_extent, known_extents, loop_var
from retune.compiler.schedule.contraction import LEFT, RIGHT
from retune.compiler.schedule.state import Annotation, Attached, FuseRelation
from retune.compiler.te.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class _Factor:
    """A factor in shared memory: its stage, its elements, its layout, and the rows of fragments of a warp in the order
    of the instructions; 1 leaves the order unchanged.
    """

    stage: int
    size: int
    layout: GroupLayout
    fragments: int

    def offset(self, row: Expr, depth: Expr) -> Expr:
        """The distance of an element from the first; the columns of a right factor are its rows."""
        if self.fragments > 1:
            warp, fragment = row // (ROWS * self.fragments), row // ROWS % self.fragments
            group, member = warp // GROUP_WARPS, warp % GROUP_WARPS
            row = ((group * self.fragments + fragment) * GROUP_WARPS + member) * ROWS + row % ROWS
        return self.layout.offset(row, depth)


@dataclass(frozen=True, slots=True)
class _Group:
    """A product of warpgroups inside the loops of the stage `root`.

    `row_warp` and `column_warp` number a warp of the block, of which `row_warps` are along the rows. The last `folded`
    loops around the fragments are part of the statement.
    """

    root: int
    row_warps: int
    row_warp: Expr
    column_warp: Expr
    shape: GroupShape
    left: _Factor
    right: _Factor
    folded: int


class GroupBuilder(TensorBuilder):
    """The loops of a state for a GPU whose warpgroups multiply."""

    def make_buffers(self) -> list[tuple[Buffer, ...]]:
        """As for single warps, but without padding of the factors of warpgroups."""
        self.groups: dict[int, _Group] = {}
        self.factors: dict[int, _Factor] = {}
        buffers = super().make_buffers()
        for stage_id in self.products:
            group = self.plan(stage_id)
            if group is None:
                continue
            self.groups[stage_id] = group
            for factor in (group.left, group.right):
                self.factors[factor.stage] = factor
                self.strides.pop(factor.stage, None)
                buffers[factor.stage] = (replace(buffers[factor.stage][0], shape=(factor.size,)),)
        return buffers

    def plan(self, stage_id: int) -> _Group | None:
        """The product of a stage on warpgroups; None where they cannot compute it."""
        stage, product = self.state.stages[stage_id], self.products[stage_id]
        op, location = stage.op, stage.location
        if not isinstance(op, ComputeOp) or not isinstance(location, Attached) or product.instruction.packed == 1:
            return None
        warps = self.warps_of(location.stage)
        if warps is None or warps[0][1] % GROUP_WARPS or product.columns * COLUMNS > GROUP_COLUMNS:
            return None
        (row_warp, row_warps), (column_warp, column_warps) = warps
        threads = self._block_around(stage_id)
        expected = {LoopKind.THREAD_X: WARP, LoopKind.THREAD_Y: row_warps * column_warps, LoopKind.THREAD_Z: 1}
        if threads != expected:
            return None
        loops = self.loops_of(stage_id)
        rows, columns, row, column, depth = (
            loop.var if loop.extent > 1 else const(0) for loop in loops[-FRAGMENT_LOOPS - 2 :]
        )
        # Positions in the tile of a block, and their number: the fragments of a warp are neighbors.
        positions = {
            "m": (row_warp * (ROWS * product.rows) + rows * ROWS + row, row_warps * product.rows * ROWS),
            "n": (
                column_warp * (COLUMNS * product.columns) + columns * COLUMNS + column,
                column_warps * product.columns * COLUMNS,
            ),
        }
        outer = loops[: -FRAGMENT_LOOPS - 2]
        for folded in self.foldable(stage_id, outer):
            steps = outer[-1].extent if folded else 1
            total = outer[-1].var * ROWS + depth if folded and steps > 1 else depth
            sums = {**positions, "k": (total, steps * INSTRUCTIONS[product.kind].depth)}
            left, right = (self.factor(stage_id, end, sums, product.rows) for end in (LEFT, RIGHT))
            if left is not None and right is not None:
                shape = GroupShape(product.rows, product.columns, steps)
                return _Group(location.stage, row_warps, row_warp, column_warp, shape, left, right, folded)
        return None

    def foldable(self, stage_id: int, outer: Sequence[NestLoop]) -> tuple[int, ...]:
        """The numbers of loops around the fragments for one statement: a loop over steps, without inner stages."""
        inside = outer and (not outer[-1].reduces or self.state.attached_at(stage_id, len(outer) - 1))
        return (0,) if not outer or inside else (1, 0)

    def warps_of(self, root: int) -> tuple[tuple[Expr, int], tuple[Expr, int]] | None:
        """A warp's numbers along rows and columns, and their counts, where the warp loop is fused of just these."""
        stage, sizes = self.state.stages[root], known_extents(self.bounds[root].sizes)
        bound = [loop.name for loop in stage.iters if loop.annotation is Annotation.THREAD_Y]
        fused = {relation.fused: relation.parts for relation in stage.relations if isinstance(relation, FuseRelation)}
        parts = fused.get(bound[0], ()) if len(bound) == 1 else ()
        if len(parts) != 2 or any(part in fused for part in parts):
            return None
        row_part, column_part = (
            (loop_var((root, part)) if sizes[part] > 1 else const(0), sizes[part]) for part in parts
        )
        return row_part, column_part

    def factor(self, stage_id: int, end: str, positions: dict[str, tuple[Expr, int]], fragments: int) -> _Factor | None:
        """The factor of a product whose name ends with `end`; None unless its tile holds just what the warps multiply:
        `positions` gives the index along m, n and k, and its extent.
        """
        op = self.state.stages[stage_id].op
        assert isinstance(op, ComputeOp), "plan() has looked"
        points = self.points(stage_id, op)[2]
        absolute = {axis.name: points[axis] for axis in (*op.axes, *op.reduce_axes)}
        candidates = [n for n, _ in self.state.dag.reads[stage_id] if self.state.stages[n].op.name.endswith(end)]
        source = self.state.stages[candidates[0]].op if len(candidates) == 1 else None
        if not isinstance(source, ComputeOp) or not isinstance(self.state.stages[candidates[0]].location, Attached):
            return None
        region = self.bounds[candidates[0]].region
        extents = tuple(map(known_extent, region.extents))
        for axis, low, extent in zip(source.axes, region.mins, extents, strict=True):
            position, expected = positions.get(axis.name, (const(0), 1))
            difference = affine(absolute[axis.name]).plus(affine(self.start(low)), -1)
            if extent != expected or difference != affine(position):
                return None
        lines, neighbors = extents[1:]
        transposed = source.axes[-1].name != "k"
        # A warpgroup reads from the start of a line: 64 rows of the left factor, or the columns of a warp.
        columns = self.products[stage_id].columns * COLUMNS if transposed and end == RIGHT else neighbors
        layout = GroupLayout(lines, gcd(columns, SWIZZLED[-1]), transposed)
        return _Factor(candidates[0], lines * neighbors, layout, fragments if end == LEFT else 1)

    def loops_of(self, stage_id: int) -> list[NestLoop]:
        """As for single warps, but the warps of a group are next to each other along the rows."""
        loops = super().loops_of(stage_id)
        for group in self.groups.values():
            if group.root == stage_id:
                loops = [_rows_first(loop, group.row_warps) for loop in loops]
        return loops

    def buffer_indices(self, stage_id: int, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """As for single warps; the elements of warpgroup factors by their layout."""
        if stage_id not in self.factors:
            return super().buffer_indices(stage_id, indices)
        factor = self.factors[stage_id]
        row, depth = reversed(indices[1:]) if factor.layout.transposed else indices[1:]
        return (factor.offset(row, depth),)

    def product(self, stage_id: int) -> Stmt:
        """The sums set to 0, and the loops in which warpgroups multiply."""
        group = self.groups.get(stage_id)
        if group is None:
            return super().product(stage_id)
        loops, product, sums = self.loops_of(stage_id), self.products[stage_id], self.buffers[stage_id][0]
        outer, inner = loops[: -FRAGMENT_LOOPS - 2], loops[-FRAGMENT_LOOPS - 2 :]
        self.check_outside(stage_id, len(outer), len(loops))
        ranges = self.ranges()

        def start(factor: _Factor, row: Expr) -> tuple[Expr, ...]:
            return (as_index(affine(simplify(factor.offset(row, const(0)), ranges))),)

        first = (const(0),) * len(sums.shape)
        left = start(group.left, group.row_warp // GROUP_WARPS * (GROUP_ROWS * product.rows))
        right = start(group.right, group.column_warp * (COLUMNS * product.columns))
        left_buffer, right_buffer = (self.buffers[factor.stage][0] for factor in (group.left, group.right))
        layouts = group.left.layout, group.right.layout
        multiply = WarpgroupMma(
            product.kind, sums, first, left_buffer, left, right_buffer, right, group.shape, *layouts
        )
        # The factors are written by ordinary stores, which the tensor cores see only after a fence.
        steps = block(ProxyFence(), multiply, WarpgroupWait(0, sums, first, group.shape.sums))
        outer_loops = outer[: len(outer) - group.folded]
        cleared = Fragments(product, sums, inner, stage_id).clear()
        return block(cleared, self.wrap(stage_id, outer_loops, steps, [], None))


def _rows_first(loop: NestLoop, row_warps: int) -> NestLoop:
    """The loop over warps with its numbers along the rows fastest."""
    if loop.kind is not LoopKind.THREAD_Y:
        return loop
    (row, _, rows), (column, _, columns) = loop.parts
    return replace(loop, parts=((row, loop.var % row_warps, rows), (column, loop.var // row_warps, columns)))
