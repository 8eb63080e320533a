"""Default schedule of two products with a reduction of rows between them, as in attention: a block of rows at a time.

The scores between the products are as many as rows times columns, often more than any near cache holds. A block of
their rows stays there until the second product has used it, and is never written to memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

from retune.compiler.dtype import item_bytes
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.product_tiles import axes_of, bytes_of, order_for_tile, register_tile, row_axis_of
from retune.compiler.schedule.state import Annotation, Inlined, IterKind, State
from retune.compiler.schedule.steps import Annotate, ComputeAt, Fuse, Split
from retune.compiler.target import HardwareParams
from retune.compiler.te.tensor import ComputeOp

_BLOCK = 3 << 16
"""Most bytes of a block of rows, beside a strip of the other factors in a second-level cache of half a megabyte."""
_LEAST_ROWS, _LEAST_BLOCKS = 4, 16
"""A block has so many rows at least, since every block reads the other factors whole; but there are so many blocks for
threads to share.
"""

_HEIGHTS = range(3, 9)
"""Rows of register tiles."""
_MANY_STRIPS = 16
"""So many strips of two vectors are worth another kernel for what remains of a row."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Stages of a graph: product `first` computes rows from which `left` is made, which product `second` reads row by
    row; `rows` of them are a block.
    """

    first: int
    left: int
    second: int
    rows: int


def row_block(rows: int, copies: int, row_bytes: int) -> int:
    """How many of the rows of scores, of which there are `copies` matrices, are a block; 0 where none fits a cache."""
    whole = (size for size in range(_LEAST_ROWS, rows + 1) if rows % size == 0 and size * row_bytes <= _BLOCK)
    # Some rows of a block share what a register tile reads along its strip.
    fitting = [size for size in whole if any(size % height == 0 for height in _HEIGHTS)]
    enough = [size for size in fitting if copies * rows >= size * _LEAST_BLOCKS]
    return max(enough, default=min(fitting, default=0))


def find_row_blocks(dag: ComputeDAG) -> RowBlocks | None:
    """The two products of a graph and the rows between them; None where it has others."""
    state = State.initial(dag)
    products = [place for place in range(len(dag.ops)) if row_axis_of(state, place) is not None]
    if len(products) != 2 or products[1] not in dag.output_ids:
        return None
    first, second = products
    row_axis, axes = row_axis_of(state, second), axes_of(state, second)
    left = [place for place, indices in dag.reads[second] if axes[-1] not in indices]
    if row_axis is None or row_axis < 0 or len(left) != 1 or not _makes(dag, first, left[0]):
        return None
    columns, op = axes_of(state, first)[-1].extent, dag.ops[left[0]]
    rows = axes[row_axis].extent
    if not isinstance(op, ComputeOp) or op.reduce_axes or left[0] == first:
        return None
    row_bytes = columns * item_bytes(op.dtype)
    size = row_block(rows, bytes_of(state, first) // (rows * row_bytes), row_bytes * _most_alive(dag, first, second))
    return RowBlocks(first, left[0], second, size) if size else None


def _most_alive(dag: ComputeDAG, first: int, second: int) -> int:
    """How many of the stages from `first` up to `second` that have as many elements as the scores are needed at a time.
    One that is made of another, which nothing reads later, takes its place: see `ReuseLocals` of the passes.
    """
    alive = set[int]()
    most = 1
    for place in range(first, second):
        op = dag.ops[place]
        if isinstance(op, ComputeOp) and op.shape == dag.ops[first].shape:
            over = {one for one in alive if max(dag.readers[one], default=place) <= place}
            alive = (alive - over) | {place}
            most = max(most, len(alive) + max(0, len(over) - 1))
    return most


def _makes(dag: ComputeDAG, source: int, result: int) -> bool:
    """Whether `result` is computed from `source`."""
    seen, stack = set[int](), [result]
    while stack:
        place = stack.pop()
        if place == source:
            return True
        if place not in seen:
            seen.add(place)
            stack += [one for one, _ in dag.reads[place]]
    return False


def in_row_blocks(
    state: State, blocks: RowBlocks, hardware: HardwareParams, schedule: Callable[[State, int], State]
) -> State:
    """The schedule of a graph in blocks of rows. `schedule` gives the other stages their loops.

    before: for i: for j: for k: s[i, j] += …     for i: for j: p[i, j] = …     for i: for n: for j: o[i, n] += …
    after:  parallel i.0: {for j: for k: s[i.1, j] += …; p[i.1, j] = …; for n: for j: o[i, n] += …}
    """
    second, rows = blocks.second, row_axis_of(state, blocks.second)
    assert rows is not None, "a product has rows"
    axes = axes_of(state, second)
    height, strip = register_tile(blocks.rows, axes[-1].extent, hardware, axes_dtype(state, second))
    # From the last loop on, so that the numbers of those before it stay right.
    last = len(axes) - 1
    state = state.apply(Split(second, last, axes[-1].extent, (strip,)))
    state = state.apply(Split(second, rows, axes[rows].extent, (blocks.rows // height, height)))
    row, column = axes[rows].name, axes[-1].name
    around = [axis.name for place, axis in enumerate(axes[:-1]) if place != rows]
    reductions = [one.name for one in state.stages[second].iters if one.kind is IterKind.REDUCTION]
    outer = [*around, f"{row}.0", f"{column}.0", f"{row}.1", *reductions]
    state = order_for_tile(state, second, outer, [f"{row}.2", f"{column}.1"])
    if around:
        state = state.apply(Fuse(second, tuple(range(len(around) + 1))))
    state = state.apply(Annotate(second, 0, Annotation.PARALLEL))
    for place, stage in enumerate(state.stages):
        if place != second and isinstance(stage.op, ComputeOp) and not isinstance(stage.location, Inlined):
            state = _tiled(state, place, blocks.rows, hardware) if place == blocks.first else schedule(state, place)
            state = state.apply(ComputeAt(place, second, 0))
    return state


def _tiled(state: State, stage: int, block: int, hardware: HardwareParams) -> State:
    """The first product in register tiles: a strip of one factor stays in the first-level cache for all rows."""
    rows, axes = row_axis_of(state, stage), axes_of(state, stage)
    assert rows is not None, "a product has rows"
    # What remains of many strips costs less than narrower strips that leave nothing.
    pair = 2 * hardware.vector_unit_bytes // item_bytes(axes_dtype(state, stage))
    columns = axes[-1].extent
    columns -= columns % pair if columns >= _MANY_STRIPS * pair else 0
    height, strip = register_tile(block, columns, hardware, axes_dtype(state, stage))
    state = state.apply(Split(stage, len(axes) - 1, axes[-1].extent, (strip,)))
    state = state.apply(Split(stage, rows, axes[rows].extent, (height,)))
    row, column = axes[rows].name, axes[-1].name
    around = [axis.name for place, axis in enumerate(axes[:-1]) if place != rows]
    reductions = [one.name for one in state.stages[stage].iters if one.kind is IterKind.REDUCTION]
    outer = [*around, f"{column}.0", f"{row}.0", *reductions]
    return order_for_tile(state, stage, outer, [f"{row}.1", f"{column}.1"])


def axes_dtype(state: State, stage: int) -> str:
    """The type of what a stage computes."""
    op = state.stages[stage].op
    assert isinstance(op, ComputeOp), "only what is computed has axes"
    return op.dtype
