"""Plans how blocks cover the results of a symbolic program: their sizes along the classes of axes, and their steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.errors import ScheduleError
from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.block_placement import sizes_of
from retune.compiler.lower.kept_rows import ROW_BYTES
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.schedule.blocks import MOST, BlockSize, block_of, class_in
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.product_tiles import row_axis_of
from retune.compiler.schedule.default.row_blocks import find_row_blocks
from retune.compiler.schedule.state import Number, State, replay
from retune.compiler.schedule.steps import Block, Split, Step
from retune.compiler.te.tensor import ComputeOp

_COLUMNS = 64
"""Points of a block along the last axis of the results: a few vectors on every machine."""
_COLUMN_RATIO = 4
"""The ratio of blocks of columns to the next smaller blocks: each size is another part of the code."""
_MANY_ROWS = 840
"""Rows that the heights of all register tiles divide."""
_BLOCK_ROWS = 32
"""Rows of a block of two products: every block reads all of both other factors."""
_FEW_ROWS = 8
"""Rows of the last blocks of two products. A single row has a block only if fewer rows are too long."""
_MOST_HEIGHTS = 8
"""The tallest tile for which blocks of every smaller height are built: each is another part of the code."""
_MOST_POINTS = 1024
"""The largest block along one axis: smaller blocks of many sizes cover what is left."""
POINT = BlockSize(1)
"""The size of the smallest blocks."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """How blocks cover the results: in parallel along the classes `outer`, in turn along `inner`."""

    outer: Sequence[AxisClass]
    inner: AxisClass | None
    columns: AxisClass | None
    """The class along which results are neighbors in memory."""
    sizes: Mapping[AxisClass, BlockSize]
    steps: Sequence[Step]
    """The steps of a full block."""
    hardware: HardwareParams
    """Without cores if only blocks are shared among threads, not their loops."""
    keeps_rows: bool
    """Whether a block has all columns of its rows of two products."""
    is_fitted: bool = False
    """Whether smaller blocks have the steps of a full block, fitted to their sizes."""

    @property
    def has_strips(self) -> bool:
        """Whether the parallel loop of a block is shared among threads, too."""
        return self.hardware.num_cores != 0

    def sizes_of(self, known: AxisClass) -> list[BlockSize]:
        """The sizes of blocks along a class."""
        points = self.sizes[known].points
        if self.keeps_rows and points > 1:
            return [BlockSize(points), BlockSize(_FEW_ROWS, is_clamped=True), POINT]
        if known is self.columns:
            return list(sizes_of(points, _COLUMN_RATIO))
        # The rows that are left are in one tile, or two of a tall tile: each reads the other factor.
        heights = [points]
        while heights[-1] > _MOST_HEIGHTS:
            heights.append(heights[-1] // 2)
        return [BlockSize(height) for height in (*heights, *range(heights[-1] - 1, 0, -1))]

    @classmethod
    def of(
        cls, program: SymbolicProgram, hardware: HardwareParams, stand_ins: dict[str, int], steps: Sequence[Step] = ()
    ) -> "BlockPlan":
        """The plan of a program with results, with the sizes of blocks and the schedule in `steps`, a program
        of `schedule/steps/block.py`. `stand_ins` are as in `block_of`. Raises: ScheduleError.
        """
        return _Planner(program, hardware, stand_ins).plan(steps)

    def schedule(self, dag: ComputeDAG) -> State:
        """The scheduled block of some sizes. Raises: ScheduleError."""
        if self.is_fitted:
            return _replay_fitted(dag, self.steps)
        try:
            return replay(dag, self.steps)
        except ScheduleError:  # the steps of full blocks may split what a smaller block does not have
            return replay(dag, default_steps(dag, self.hardware, is_block=self.keeps_rows))


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans the blocks of one program."""

    program: SymbolicProgram
    hardware: HardwareParams
    stand_ins: dict[str, int]

    def plan(self, chosen: Sequence[Step]) -> BlockPlan:
        """How blocks cover the results."""
        (*_, last) = self.program.computed
        columns = self.program.parallel_class(last, last.axes[-1]) if last.axes else None
        sizes = {
            known: BlockSize(_COLUMNS if known is columns else 1) for known in self.program.classes if known.is_parallel
        }
        rows = self._rows(sizes)
        block_rows = 0 if rows is None else self._block_rows(sizes, rows)
        if rows is not None and block_rows:
            sizes[rows] = BlockSize(block_rows)
        elif rows is not None:
            probe = default_steps(self._dag({**sizes, rows: BlockSize(_MANY_ROWS)}), self.hardware)
            splits = [step for step in probe if isinstance(step, Split) and step.extent == _MANY_ROWS]
            heights = [length for step in splits for length in step.lengths if isinstance(length, int)]
            sizes[rows] = BlockSize(max(heights, default=1))
        sizes |= dict(self._chosen_size(step) for step in chosen if isinstance(step, Block))
        own = [self.program.parallel_class(last, axis) for axis in last.axes]
        outer = [known for known in own if known is not None]
        reduces = any(op.reduce_axes for op in self.program.computed)
        # Little work a block: where a block is, is computed for all blocks along the last class together.
        inner = outer.pop() if len(outer) > 1 and (columns is not None or not reduces) else None
        is_shared = rows is not None and inner is None and not self.program.keeps_rows
        shares = self.hardware if is_shared else replace(self.hardware, num_cores=0)
        schedule = tuple(step for step in chosen if not isinstance(step, Block))
        steps = schedule or default_steps(self._dag(sizes), shares, is_block=block_rows > 0)
        return BlockPlan(outer, inner, columns, sizes, steps, shares, block_rows > 0, bool(schedule))

    def _chosen_size(self, step: Block) -> tuple[AxisClass, BlockSize]:
        """The class and the size that a step names. Raises: ScheduleError."""
        known = self.program.parallel_class(*self.program.axis(step.stage, step.iter))
        if known is None or not 1 <= step.points <= _MOST_POINTS:
            raise ScheduleError(f"no blocks of {step.points} points are along axis {step.iter} of stage {step.stage}")
        return known, BlockSize(step.points)

    def _block_rows(self, sizes: Mapping[AxisClass, BlockSize], rows: AxisClass) -> int:
        """The rows of a block of two products that keeps what is between them; 0 for other programs."""
        dag = self._dag({**sizes, rows: BlockSize(_BLOCK_ROWS)})
        blocks = find_row_blocks(dag, is_block=True)
        if blocks is None:
            return 0
        columns, dtypes = dag.ops[blocks.first].shape[-1], dag.ops[blocks.first].dtypes
        if columns == MOST:
            return _BLOCK_ROWS
        most = ROW_BYTES // (columns * item_bytes(dtypes[0])) - _FEW_ROWS
        return next((height for height in (_BLOCK_ROWS, _BLOCK_ROWS // 2, _FEW_ROWS) if height <= most), 0)

    def _rows(self, sizes: Mapping[AxisClass, BlockSize]) -> AxisClass | None:
        """The class along which a product reads the same elements of a factor, if blocks have one point of it yet."""
        state = State.initial(self._dag({known: BlockSize(max(size.points, 2)) for known, size in sizes.items()}))
        for stage_id, stage in enumerate(state.stages):
            number = row_axis_of(state, stage_id)
            if number is not None and number >= 0 and isinstance(stage.op, ComputeOp):
                known = class_in(stage.op.axes[number].name, self.program.classes)
                if known is not None and sizes.get(known) == POINT:
                    return known
        return None

    def _dag(self, sizes: Mapping[AxisClass, BlockSize]) -> ComputeDAG:
        return ComputeDAG(block_of(self.program, sizes, self.stand_ins))


def _replay_fitted(dag: ComputeDAG, steps: Sequence[Step]) -> State:
    """The state of the steps of a larger block, with the lengths of its loops fitted to the extents of `dag`."""
    state = State.initial(dag)
    for step in steps:
        if isinstance(step, Split):
            extent = state.stage(step.stage).iters[step.iter].extent
            if isinstance(extent, int) and extent != step.extent:
                step = replace(step, extent=extent, lengths=_fitting(extent, step.lengths))
        state = state.apply(step)
    return state


def _fitting(extent: int, lengths: Sequence[Number | None]) -> tuple[int, ...]:
    """Lengths of at most `lengths` whose product divides `extent`: the innermost, of the register tile, first."""
    fitted: list[int] = []
    for length in reversed(lengths):
        most = length if isinstance(length, int) else 1
        fitted.append(next(size for size in range(min(most, extent), 0, -1) if extent % size == 0))
        extent //= fitted[-1]
    return tuple(reversed(fitted))
