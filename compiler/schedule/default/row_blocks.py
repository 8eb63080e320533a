"""Default schedule of two products with a reduction of rows between them, as in attention: a block of rows at a time.

The scores between the products are rows times columns, often more than any near cache holds. A block of their rows
stays there until the second product has used it, and is never written to memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.expr import Const
from retune.compiler.ir.stmt import MOST_ITERATIONS
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.product_tiles import (
    as_tile,
    register_tile,
    reorder_loops,
    row_axis_of,
)
from retune.compiler.schedule.default.stages import axes_of
from retune.compiler.schedule.reads import is_strictly_inlineable
from retune.compiler.schedule.state import Annotation, Attached, Inlined, IterKind, State
from retune.compiler.schedule.steps import Annotate, CacheRead, ComputeAt, Fuse, Split
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp

_BLOCK = 3 << 16
"""Most bytes of a block of rows, next to a strip of the other factors in a second-level cache of half a megabyte."""
_LEAST_ROWS, _LEAST_BLOCKS = 4, 16
"""Least rows of a block, since every block reads the other factors whole; and least blocks, for threads to share."""

_HEIGHTS = range(3, 9)
"""Rows of register tiles."""
_MANY_STRIPS = 16
"""Strips of two vectors that justify a separate kernel for the remainder of a row."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Product `second` reads `left` row by row, computed from product `first`; `rows` of them are a block."""

    first: int
    left: int
    second: int
    rows: int


def row_block(rows: int, copies: int, row_bytes: int) -> int:
    """The number of rows of a block of scores, of which there are `copies` matrices; 0 where no block fits a cache or
    threads would get too few blocks.
    """
    fitting = [size for size in range(_LEAST_ROWS, rows + 1) if rows % size == 0 and size * row_bytes <= _BLOCK]
    # Rows of a block share what a register tile reads along its strip.
    tiled = [size for size in fitting if any(size % height == 0 for height in _HEIGHTS)]
    return max((size for size in tiled if copies * rows >= size * _LEAST_BLOCKS), default=0)


def find_row_blocks(dag: ComputeDAG, *, is_block: bool = False) -> RowBlocks | None:
    """The two products of a graph and the rows between them; if the graph itself `is_block`, all its rows.

    None unless each row of the second product needs only that row of the scores, and everything between can be computed
    in one buffer: then a block fits the stack.
    """
    state = State.initial(dag)
    row_axes = {
        stage_id: axis for stage_id in range(len(dag.ops)) if (axis := row_axis_of(state, stage_id)) is not None
    }
    if len(row_axes) != 2 or min(row_axes.values()) < 0 or dag.output_ids != {max(row_axes)}:
        return None
    first, second = row_axes
    left = _left_factor(dag, second, row_axes[second], row_axes[first])
    if left is None or not _is_made_by_rows(dag, first, left, second):
        return None
    shape, dtypes = dag.ops[first].shape, dag.ops[first].dtypes
    rows = shape[row_axes[first]]
    size = rows if is_block else row_block(rows, prod(shape[:-1]) // rows, shape[-1] * item_bytes(dtypes[0]))
    return RowBlocks(first, left, second, size) if size else None


def _left_factor(dag: ComputeDAG, product: int, rows: int, dim: int) -> int | None:
    """The factor read along a product's sum, with the product's axis `rows` as dimension `dim`; else None."""
    op = dag.ops[product]
    if not isinstance(op, ComputeOp) or len(op.reduce_axes) != 1:
        return None
    summed = [(source, indices) for source, indices in dag.reads[product] if op.axes[-1] not in indices]
    broadcast = [source for source, indices in dag.reads[product] if op.axes[-1] in indices]
    if len(summed) != 1 or not all(_is_available(dag, source) for source in broadcast):
        return None
    ((left, indices),) = summed
    outer = [axis for axis in op.axes[:-1] if axis.extent > 1]
    is_plain = all(isinstance(index, Axis | Const) for index in indices) and all(axis in indices for axis in outer)
    fits = dim < len(indices) - 1 and indices[dim] == op.axes[rows] and indices[-1] == op.reduce_axes[0]
    return left if is_plain and fits else None


def _is_available(dag: ComputeDAG, stage_id: int) -> bool:
    """Whether a stage is an input or will be inlined."""
    return not isinstance(dag.ops[stage_id], ComputeOp) or is_strictly_inlineable(dag, stage_id)


def _is_made_by_rows(dag: ComputeDAG, first: int, left: int, second: int) -> bool:
    """Whether `left` is computed from `first` by stages that each map the previous matrix to a matrix of the same type,
    element by element, and by reductions of its rows; everything else is inlined.
    """
    shape, dtypes = dag.ops[first].shape, dag.ops[first].dtypes
    latest, of_rows = first, set[int]()
    for stage_id in (other_id for other_id in range(second) if other_id != first):
        op, reads = dag.ops[stage_id], dag.reads[stage_id]
        if not {latest, *of_rows} & {source for source, _ in reads}:
            if not _is_available(dag, stage_id):
                return False
            continue
        if not isinstance(op, ComputeOp) or op.shape not in (shape, shape[:-1]):
            return False
        point, row = (*op.axes, *op.reduce_axes), op.axes[: len(shape) - 1]
        expected = {latest: point, **dict.fromkeys(of_rows, row)}
        if any(indices != expected.get(source, indices) for source, indices in reads):
            return False
        if op.shape != shape:
            of_rows.add(stage_id)
        # It reuses the memory of the previous matrix, which nothing may read later (`reuse_locals`).
        elif op.reduce_axes or op.dtypes != dtypes or max(dag.readers[latest]) != stage_id:
            return False
        else:
            latest = stage_id
    return latest == left != first


def in_row_blocks(
    state: State, blocks: RowBlocks, hardware: HardwareParams, schedule: Callable[[State, int], State]
) -> State:
    """The schedule of a graph in blocks of rows. `schedule` gives the other stages their loops.

    before: for i: for j: for k: s[i, j] += …     for i: for j: p[i, j] = …     for i: for n: for j: o[i, n] += …
    after:  parallel i.0: {for j: for k: s[i.1, j] += …; p[i.1, j] = …; for n: for j: o[i, n] += …}
    """
    first, second = blocks.first, blocks.second
    op = state.dag.ops[first]
    assert isinstance(op, ComputeOp), "a product is computed"
    columns, depth = op.axes[-1].extent, prod(axis.extent for axis in op.reduce_axes)
    # The remainder of many strips costs less than narrower strips without a remainder.
    pair = 2 * hardware.vector_unit_bytes // item_bytes(op.dtype)
    columns -= columns % pair if columns >= _MANY_STRIPS * pair else 0
    tiles = BlockTiles(
        blocks.rows,
        # A strip of a symbolic number of columns divides the most that there may be.
        register_tile(blocks.rows, columns, hardware, op.dtype, depth, divides=columns >= MOST_ITERATIONS),
        register_tile(blocks.rows, axes_of(state, second)[-1].extent, hardware, op.dtype),
    )
    state = placed_in_blocks(state, blocks, tiles)
    outer_axes = len(axes_of(state, second)) - 2
    for product, loop in ((first, len(op.axes) - 2), (second, outer_axes + 1)):
        # The rows of a block share a strip of a copied factor.
        for source, indices in state.dag.reads[product]:
            if isinstance(state.stages[source].location, Attached) and indices[-1] == axes_of(state, product)[-1]:
                state = state.apply(ComputeAt(source, product, loop))
    for stage_id, stage in enumerate(state.stages):
        if stage_id in (first, second):
            state = as_tile(state, stage_id, 2)
        elif isinstance(stage.location, Attached):
            state = schedule(state, stage_id)
    if outer_axes:
        state = state.apply(Fuse(second, tuple(range(outer_axes + 1))))
    return state.apply(Annotate(second, 0, Annotation.PARALLEL))


def copy_factors(state: State, blocks: RowBlocks, hardware: HardwareParams) -> tuple[State, RowBlocks]:
    """Copies of the inputs of halves of both products, which lowering converts to float32 once (`widen_buffers`)."""
    # From the last input on, so that the numbers of earlier inputs stay right.
    for source in reversed(range(blocks.second)):
        op, readers = state.dag.ops[source], {blocks.first, blocks.second} & set(state.dag.readers[source])
        if len(readers) == 1 and not isinstance(op, ComputeOp) and hardware.converts(op.dtypes[0]):
            state = state.apply(CacheRead(source, "local", tuple(readers)))
            first, left, second = (number + (number > source) for number in (blocks.first, blocks.left, blocks.second))
            blocks = RowBlocks(first, left, second, blocks.rows)
    return state, blocks


@dataclass(frozen=True, slots=True)
class BlockTiles:
    """The rows of a block, and the register tiles (rows, columns) of both products; None is left to the search."""

    rows: int | None = None
    first: tuple[int | None, int | None] = (None, None)
    second: tuple[int | None, int | None] = (None, None)


def placed_in_blocks(state: State, blocks: RowBlocks, tiles: BlockTiles) -> State:
    """The stages of a graph, with the loops of both products in tiles, inside a block of rows of the second."""
    first, second = blocks.first, blocks.second
    height, strip = tiles.second
    inside = None if tiles.rows is None or height is None else tiles.rows // height
    state, outer_axes, row, column, sums = _split(state, second, strip, (inside, height))
    outer = [*outer_axes, f"{row}.0", f"{column}.0", f"{row}.1", *sums]
    state = reorder_loops(state, second, [*outer, f"{row}.2", f"{column}.1"])
    block = len(outer_axes)
    # A strip of one factor of the first product stays in the first-level cache for all rows.
    height, strip = tiles.first
    state, outer_axes, row, column, sums = _split(state, first, strip, (height,))
    state = reorder_loops(state, first, [*outer_axes, f"{column}.0", f"{row}.0", *sums, f"{row}.1", f"{column}.1"])
    for stage_id, stage in enumerate(state.stages):
        if stage_id != second and isinstance(stage.op, ComputeOp) and not isinstance(stage.location, Inlined):
            state = state.apply(ComputeAt(stage_id, second, block))
    return state


def _split(
    state: State, stage: int, strip: int | None, heights: tuple[int | None, ...]
) -> tuple[State, list[str], str, str, list[str]]:
    """A product with its columns split into strips and its rows by `heights`; the names of its outer axes, of its rows
    and columns, and of the loops of its sum.
    """
    rows, axes = row_axis_of(state, stage), axes_of(state, stage)
    assert rows is not None, "a product has rows"
    # From the last loop on, so that the numbers of earlier loops stay right.
    state = state.apply(Split(stage, len(axes) - 1, axes[-1].extent, (strip,)))
    state = state.apply(Split(stage, rows, axes[rows].extent, heights))
    outer_axes = [axis.name for number, axis in enumerate(axes[:-1]) if number != rows]
    sums = [loop.name for loop in state.stages[stage].iters if loop.kind is IterKind.REDUCTION]
    return state, outer_axes, axes[rows].name, axes[-1].name, sums
