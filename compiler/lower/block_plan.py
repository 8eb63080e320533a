"""Plans how blocks cover the results of a symbolic program: their sizes along the classes of axes, and their steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.block_placement import sizes_of
from retune.compiler.lower.kept_rows import ROW_BYTES
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.schedule.blocks import MOST, BlockSize, block_of, class_in
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.product_tiles import row_axis_of
from retune.compiler.schedule.default.row_blocks import find_row_blocks
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Split, Step
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
    def of(cls, program: SymbolicProgram, hardware: HardwareParams, stand_ins: dict[str, int]) -> "BlockPlan":
        """The plan of a program with results; `stand_ins` are as in `block_of`."""
        return _Planner(program, hardware, stand_ins).plan()


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans the blocks of one program."""

    program: SymbolicProgram
    hardware: HardwareParams
    stand_ins: dict[str, int]

    def plan(self) -> BlockPlan:
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
        own = [self.program.parallel_class(last, axis) for axis in last.axes]
        outer = [known for known in own if known is not None]
        reduces = any(op.reduce_axes for op in self.program.computed)
        # Little work a block: where a block is, is computed for all blocks along the last class together.
        inner = outer.pop() if len(outer) > 1 and (columns is not None or not reduces) else None
        is_shared = rows is not None and inner is None and not self.program.keeps_rows
        shares = self.hardware if is_shared else replace(self.hardware, num_cores=0)
        steps = default_steps(self._dag(sizes), shares, is_block=block_rows > 0)
        return BlockPlan(outer, inner, columns, sizes, steps, shares, block_rows > 0)

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
