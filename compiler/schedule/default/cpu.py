"""The default schedule of a compute graph on CPUs: fast to derive and correct, without search or measurement.

Elementwise producers are inlined, outer loops run in parallel, and stages without data reuse (elementwise, pooling,
softmax) get a vector loop over their last axis; a stage that transposes its input is blocked, so that every cache line
read is fully used. Products and convolutions get a register tile that fits the machine's registers: a few rows of a
strip of the last axis, with the reduction around them. Other stages that would need tiling keep their naive loops,
which tuning improves.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.expr import Const, Select
from retune.compiler.ir.visit import walk
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.panels import Panel
from retune.compiler.schedule.default.product_tiles import order_for_tile, register_tile, row_axis_of, split_for_tile
from retune.compiler.schedule.default.row_blocks import copy_factors, find_row_blocks, in_row_blocks
from retune.compiler.schedule.default.stages import axes_of, axis_name, bytes_of
from retune.compiler.schedule.reads import (
    LEAST_PIECE,
    consumers,
    elementwise_match,
    is_read_by_function,
    is_strictly_inlineable,
    needs_multi_level_tiling,
    piece_widths,
    reduces_rows,
    single_elementwise_consumer,
)
from retune.compiler.schedule.state import Annotation, Inlined, IterKind, State
from retune.compiler.schedule.steps import Annotate, CacheRead, ComputeAt, ComputeInline, Fuse, Reorder, Split, Step
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import SCATTERS, ComputeOp

# Threads' shares differ by one iteration at most, which is negligible among so many.
_PARALLEL_ITERATIONS = 64
_CACHE_BYTES = 1 << 22
"""A matrix of this size does not stay in the caches of a CPU's core."""
_DEPTHS = (256, 128)
"""Terms of a long sum that are added in one block."""
_MANY_ROWS = 256
"""Rows that amortize the copy of a strip of the other factor."""
_BLOCK, _NARROW = (16, 8, 32, 24, 12), (8, 16, 4)
"""Block sizes of a transposing copy, along the axis of neighbors in the input and that of the result: the first that
divides the axis. A cache line has 16 float32; lines of 8 rows whose addresses differ by a power of two still fit the
ways of a first-level cache.
"""
_FEW_READS, _FEW_WIDE_READS = 3.1, 13.0
"""Reads of an element of a padded tensor, as by a 3 x 3 window of stride 2, or 1, with a row of zeros; more
in vectors of AVX-512, of which an element takes fewer tests (measured: 0.5 to 0.9 of the time of a copy for float32).
"""
_USUAL = HardwareParams(num_cores=1)
_WHOLE = 64
"""An axis of at most this many elements without a listed divisor is not split; others get their largest divisor."""


@dataclass(frozen=True, slots=True)
class _Large:
    """A product whose factor `right`, read along the last axis, fits no cache: a `tile` of (rows, columns) shares it
    along the axis `rows`; `depth` terms of the sum are added in one block.
    """

    stage: int
    right: int
    rows: int
    tile: tuple[int, int]
    depth: int


def default_steps(dag: ComputeDAG, hardware: HardwareParams = _USUAL, *, is_block: bool = False) -> tuple[Step, ...]:
    """Steps of the default schedule of `dag`, with register tiles that fit the registers of `hardware`. A graph that
    `is_block` has the rows of one block of two products.
    """
    blocks = find_row_blocks(dag, is_block=is_block)
    if blocks is not None:
        state = inlined_by_default(dag, {blocks.left}, hardware)
        if not is_block:
            state, blocks = copy_factors(state, blocks, hardware)
        return _plain(in_row_blocks(state, blocks, hardware, _vectorize))
    return _steps(inlined_by_default(dag, hardware=hardware), hardware)


def reference_steps(dag: ComputeDAG, hardware: HardwareParams = _USUAL) -> tuple[Step, ...]:
    """Steps of a program with bit-identical results, several times as fast on large products: a strip of one factor is
    copied into the cache and stays there while it meets all rows of the other. With several large products it is the
    default schedule.
    """
    state = inlined_by_default(dag, hardware=hardware)
    candidates = (_large(state, stage_id, hardware) for stage_id in range(len(state.stages)))
    large = [candidate for candidate in candidates if candidate]
    if len(large) != 1:
        return _steps(state, hardware)
    (product,) = large
    state = state.apply(CacheRead(product.right, "local", (product.stage,)))
    product = replace(product, stage=product.stage + 1, right=product.right + 1)
    return _steps(_pack(state, product), hardware, {product.stage, product.right})


def inlined_by_default(dag: ComputeDAG, kept: Collection[int] = (), hardware: HardwareParams | None = None) -> State:
    """`dag` with every stage inlined, except `kept`, that is cheap to recompute where it is read: on any hardware, or
    on `hardware`.
    """
    most_reads = _FEW_WIDE_READS if hardware is not None and hardware.lane_masks else _FEW_READS
    state = State.initial(dag)
    # From readers to producers: chains collapse into the last stage.
    for stage_id in range(len(state.stages) - 1, -1, -1):
        if stage_id not in kept and _always_inlined(state, stage_id, most_reads):
            state = state.apply(ComputeInline(stage_id))
    return state


def _steps(state: State, hardware: HardwareParams, done: Collection[int] = ()) -> tuple[Step, ...]:
    """The steps so far, and those of all stages except `done`."""
    original, finished = state.stages, set(done)
    for number, stage in enumerate(original):
        has_loops = not isinstance(stage.location, Inlined) and number not in finished
        if isinstance(stage.op, ComputeOp) and has_loops and stage.op.axes:
            # A copy of what a stage reads comes before it, so later stages have higher numbers by then.
            stage_id = number + (added := len(state.stages) - len(original))
            row_axis, reader = row_axis_of(state, stage_id, hardware), _reader_of(state, stage_id)
            # Of several products that one stage reads, the first is inside its loops.
            if row_axis is None or reader is None or reader - added in finished:
                state = _annotate(state, stage_id, hardware)
            else:
                state = _with_reader(state, stage_id, reader, row_axis, hardware)
                finished.add(reader - added)
    return _plain(state)


def _plain(state: State) -> tuple[Step, ...]:
    return tuple(step for step in state.steps if isinstance(step, Step))


def _vectorize(state: State, stage_id: int) -> State:
    """The last axis in vectors, unless lowering brings the sums along it into vectors."""
    last = len(axes_of(state, stage_id)) - 1
    return state if reduces_rows(state.dag, stage_id) else state.apply(Annotate(stage_id, last, Annotation.VECTORIZE))


def _large(state: State, stage_id: int, hardware: HardwareParams) -> _Large | None:
    """The tiles of a large product of matrices whose sizes they divide; None for other stages."""
    op, rows = state.stages[stage_id].op, row_axis_of(state, stage_id)
    if rows is None or rows < 0 or not isinstance(op, ComputeOp) or len(op.reduce_axes) != 1:
        return None
    columns, height = op.axes[-1].extent, op.axes[rows].extent
    # A strip of 32 columns times this depth of float32 is 16 or 32 KiB: it stays in the first-level cache.
    depth = next((size for size in _DEPTHS if op.reduce_axes[0].extent % size == 0), 0)
    tile = register_tile(height, columns, hardware, op.dtype)
    if not depth or tile[0] == 1 or tile[1] == columns or height < _MANY_ROWS:
        return None
    sources = {source for source, indices in state.dag.reads[stage_id] if indices and indices[-1] == op.axes[-1]}
    right = min(sources)
    read = [source for source, _ in state.dag.reads[stage_id]]
    # An input of free layout is packed beforehand, and an inlined stage has no buffer to copy.
    is_copyable = right not in state.dag.layout_free and not isinstance(state.stages[right].location, Inlined)
    if len(sources) != 1 or read.count(right) != 1 or not is_copyable:
        return None
    # A factor that fits a cache is read from there without a copy.
    return _Large(stage_id, right, rows, tile, depth) if bytes_of(state, right) >= _CACHE_BYTES else None


def _pack(state: State, product: _Large) -> State:
    """before: for i: for j: for k: c[i, j] += …
    after:  parallel j.0: for k.0: copy b; for i.0: for k.1: unroll i.1: vector j.1: c[i, j] += …
    """
    stage, rows = product.stage, product.rows
    op = state.stages[stage].op
    assert isinstance(op, ComputeOp), "only what is computed has a reduction"
    last = len(op.axes) - 1
    height, strip = product.tile
    # From the last loop on, so that the numbers of earlier loops stay right.
    for loop, size in ((last + 1, product.depth), (last, strip), (rows, height)):
        extent = state.stages[stage].iters[loop].extent
        state = state.apply(Split(stage, loop, extent if isinstance(extent, int) else 0, (size,)))
    outer = [loop + (loop > rows) for loop in range(last) if loop != rows]
    order = (*outer, last + 1, last + 3, rows, last + 4, rows + 1, last + 2)
    state = state.apply(Reorder(stage, order))
    if outer:
        state = state.apply(Fuse(stage, tuple(range(len(outer) + 1))))
    state = state.apply(ComputeAt(product.right, stage, 1))
    for loop, annotation in ((0, Annotation.PARALLEL), (4, Annotation.UNROLL), (5, Annotation.VECTORIZE)):
        state = state.apply(Annotate(stage, loop, annotation))
    return state.apply(Annotate(product.right, len(state.stages[product.right].iters) - 1, Annotation.VECTORIZE))


def _always_inlined(state: State, stage_id: int, most_reads: float) -> bool:
    stage = state.stages[stage_id]
    if not stage.is_compute or stage.has_reduce_iter or stage_id in state.dag.output_ids:
        return False
    if is_read_by_function(state, stage_id) or _leaves_steps(state.dag, stage_id, state.dag.readers[stage_id]):
        return False
    if is_strictly_inlineable(state.dag, stage_id):
        return bool(consumers(state, stage_id))
    return _is_read_once(state.dag, stage_id) or _is_light_padding(state.dag, stage_id, most_reads)


def _leaves_steps(dag: ComputeDAG, stage_id: int, readers: Collection[int]) -> bool:
    """Whether a stage would be computed in every step of a scan because of a reader, instead of once before."""
    return any(dag.scan_of.get(reader) != dag.scan_of.get(stage_id) for reader in readers)


def _is_read_once(dag: ComputeDAG, stage_id: int) -> bool:
    """Whether one stage without reduction reads every element once: inlining repeats nothing."""
    reader = next(iter(dag.readers[stage_id]), None)
    if reader is None or not elementwise_match(dag, stage_id, reader):
        return False
    op, reading = dag.ops[stage_id], dag.ops[reader]
    if not isinstance(op, ComputeOp) or not isinstance(reading, ComputeOp) or reading.reduce_axes:
        return False
    is_read_once = [source for source, _ in dag.reads[reader]].count(stage_id) == 1
    # Lowering splits vectors at the seams of a concatenation along the last axis; seams along other axes stay outside
    # of vectors. Any other branch would end up inside the reader's.
    widths = piece_widths(op, len(op.axes) - 1) if op.axes else [1]
    return is_read_once and widths is not None and (len(widths) < 2 or min(widths) >= LEAST_PIECE)


def _is_light_padding(dag: ComputeDAG, stage_id: int, most_reads: float) -> bool:
    """Whether a stage pads the input of a product that reads each element `most_reads` times at most, in vectors
    entirely inside or outside: a test for each vector costs less than writing and reading a copy.
    """
    op, reader = dag.ops[stage_id], next(iter(dag.readers[stage_id]), None)
    if (
        not isinstance(op, ComputeOp)
        or not isinstance(op.body, Select)
        or reader is None
        or len(dag.readers[stage_id]) > 1
    ):
        return False
    product, reads = dag.ops[reader], [indices for source, indices in dag.reads[reader] if source == stage_id]
    if not isinstance(product, ComputeOp) or not product.reduce_axes or len(reads) != 1 or not product.axes:
        return False
    is_whole_vectors = reads[0][-1] == product.axes[-1] and op.axes[-1] not in walk(op.body.condition)
    times = prod(axis.extent for axis in (*product.axes, *product.reduce_axes)) / prod(op.shape)
    return is_whole_vectors and times <= most_reads


def _annotate(state: State, stage_id: int, hardware: HardwareParams) -> State:
    """Outer loops in parallel, the last axis in vectors; a rank-1 stage gets the annotation that suits its size."""
    transposed = _transpose(state, stage_id)
    if transposed is not None:
        state = _block(state, stage_id, transposed)
    row_axis = row_axis_of(state, stage_id, hardware)
    panel: Panel | None = None
    if row_axis is not None:
        state, panel = _in_strips(state, stage_id, row_axis, hardware)
    stage = state.stages[stage_id]
    spatial = [index for index, iterator in enumerate(stage.iters) if iterator.kind is IterKind.SPATIAL]
    tiled = transposed is None and needs_multi_level_tiling(state.dag, stage_id)
    if _is_padding(state, stage_id):
        # A border around rows of single elements, as of joined channels: these are neighbors.
        while len(spatial) > 1 and stage.iters[spatial[-1]].extent == 1:
            spatial.pop()
    last = spatial[-1]
    if not tiled and stage.iters[last].extent != 1 and not reduces_rows(state.dag, stage_id):
        state = state.apply(Annotate(stage_id, last, Annotation.VECTORIZE))
        # The loops inside a block do not run in parallel.
        spatial = spatial[:-1] if transposed is None else spatial[:-2]
    elif row_axis is not None:
        first = next(index for index, iterator in enumerate(stage.iters) if iterator.kind is IterKind.REDUCTION)
        spatial = [index for index in spatial if index < first][: (panel and panel.loops) or None]
    elif not stage.has_reduce_iter and len(spatial) > 1:
        spatial = spatial[:-1]  # the elements of a row, as a norm's, become vectors
    state, fused = _in_parallel(state, stage_id, spatial, hardware)
    if panel is not None:
        return panel.copy(state, fused)
    return state if transposed is None or not fused else _copy_block(state, stage_id, transposed)


def _is_padding(state: State, stage_id: int) -> bool:
    op = state.stages[stage_id].op
    return isinstance(op, ComputeOp) and isinstance(op.body, Select) and not op.reduce_axes


def _in_parallel(state: State, stage_id: int, loops: Sequence[int], hardware: HardwareParams) -> tuple[State, int]:
    """The outermost of the `loops` of a stage, fused and parallel; and their number, 0 for a single iteration, and
    without cores, for a part of another parallel loop.
    """
    stage = state.stages[stage_id]
    outer: list[int] = []
    total = 1
    for index in loops:
        extent = stage.iters[index].extent
        if total >= _PARALLEL_ITERATIONS or not isinstance(extent, int):
            break
        outer.append(index)
        total *= extent
    if total == 1 or not hardware.num_cores:
        return state, 0
    if len(outer) > 1:
        state = state.apply(Fuse(stage_id, tuple(outer)))
    return state.apply(Annotate(stage_id, 0, Annotation.PARALLEL)), len(outer)


@dataclass(frozen=True, slots=True)
class _Transposed:
    """A stage that reads `source` along `axis`, not its last: blocks of `block` by `narrow` of the last axis."""

    source: int
    axis: int
    block: int
    narrow: int


def _transpose(state: State, stage_id: int) -> _Transposed | None:
    """The blocks of a stage without reduction whose input is contiguous along another long axis than its last."""
    op = state.stages[stage_id].op
    if not isinstance(op, ComputeOp) or op.reduce_axes:
        return None
    last = op.axes[-1].extent
    for source, indices in state.dag.reads[stage_id]:
        # A read without the last axis is a broadcast: the same element serves the whole row.
        used = {node for index in indices for node in walk(index)}
        fastest = indices[-1] if op.axes[-1] in used else None
        for number, axis in enumerate(op.axes[:-1]):
            block, narrow = _part(axis.extent, _BLOCK), _part(last, _NARROW)
            if fastest == axis and block > 1 and narrow > 1 and axis.extent * last > block * narrow:
                return _Transposed(source, number, block, narrow)
    return None


def _part(extent: int, sizes: Collection[int]) -> int:
    divisor = next((size for size in sizes if extent % size == 0), extent)
    # Of a longer axis the largest divisor that is no larger than the sizes.
    return divisor if divisor <= _WHOLE else max(size for size in range(1, max(sizes) + 1) if extent % size == 0)


def _in_strips(state: State, stage_id: int, row_axis: int, hardware: HardwareParams) -> tuple[State, Panel | None]:
    """The reduction outside a few rows of a strip of the last axis.

    before: for i: for j: for k: c[i, j] += …
    after:  for i.0: for j.0: for k: unroll i.1: vector j.1: c[i, j] += …
    """
    state, loops = split_for_tile(state, stage_id, stage_id, row_axis, hardware)
    reductions = [loop.name for loop in state.stages[stage_id].iters if loop.kind is IterKind.REDUCTION]
    return order_for_tile(state, stage_id, [*loops.outer, *reductions], loops.inner), loops.panel


def _with_reader(state: State, stage_id: int, reader: int, row_axis: int, hardware: HardwareParams) -> State:
    """As `_in_strips`, inside the loops of the only stage that reads the product, element by element: a tile is used
    while it is in the first-level cache.

        before: for i: for j: for k: c[i, j] += …          for i: for j: d[i, j] = f(c[i, j])
        after:  for i.0: for j.0: {for k: unroll i.1: vector j.1: c[i, j] += …; unroll i.1: vector j.1: d[i, j] = …}
    """
    state, tile_loops = split_for_tile(state, stage_id, reader, row_axis, hardware)
    outer, inner, panel = tile_loops.outer, tile_loops.inner, tile_loops.panel
    state = order_for_tile(state, reader, outer, inner)
    if not outer:
        return _annotate(state, stage_id, hardware)
    state, fused = _in_parallel(state, reader, range(len(outer))[: (panel and panel.loops) or None], hardware)
    state = state.apply(ComputeAt(stage_id, reader, len(outer) - max(fused, 1)))
    named = {
        axis.name: own_axis.name
        for axis, own_axis in zip(axes_of(state, reader), axes_of(state, stage_id), strict=True)
    }
    tile = [named[axis_name(loop)] for loop in inner]
    loops = state.stages[stage_id].iters
    outer_loops = [loop.name for loop in loops if loop.kind is IterKind.SPATIAL and loop.name not in tile]
    reductions = [loop.name for loop in loops if loop.kind is IterKind.REDUCTION]
    state = order_for_tile(state, stage_id, [*outer_loops, *reductions], tile)
    return state if panel is None else panel.copy(state, fused)


def _reader_of(state: State, stage_id: int) -> int | None:
    if SCATTERS in state.stages[stage_id].op.attrs:  # its loops are those over its terms
        return None
    reader = single_elementwise_consumer(state, stage_id)
    # A transposing copy of its input, or its own tile, would prevent the product's tile.
    plain = reader is not None and row_axis_of(state, reader) is None and _transpose(state, reader) is None
    if not plain or reader is None or is_read_by_function(state, stage_id):
        return None
    return None if _leaves_steps(state.dag, stage_id, (reader,)) else reader


def _block(state: State, stage_id: int, transposed: _Transposed) -> State:
    """before: for h: for w: for c: y[h, w, c] = x[c, h, w]
    after:  for h: for w.0: for c.0: for w.1: for c.1: …
    """
    last = len(state.stages[stage_id].iters) - 1
    # From the last loop on, so that the number of the other loop stays right.
    for loop, size in ((last, transposed.narrow), (transposed.axis, transposed.block)):
        extent = state.stages[stage_id].iters[loop].extent
        state = state.apply(Split(stage_id, loop, extent if isinstance(extent, int) else 0, (size,)))
    inside = (transposed.axis + 1, last + 2)
    outer = [loop for loop in range(last + 3) if loop not in inside]
    return state.apply(Reorder(stage_id, (*outer, *inside)))


def _copy_block(state: State, stage_id: int, transposed: _Transposed) -> State:
    """A block of the input is copied in its own order, and read in the other order from the copy: the copy's rows are
    adjacent, while those of the input may be so far apart that they evict each other from the cache.
    """
    reads = [indices for source, indices in state.dag.reads[stage_id] if source == transposed.source]
    # Of other reads, such as inside an image, a block could reach outside.
    plain = all(isinstance(index, Axis | Const) for indices in reads for index in indices)
    if len(reads) != 1 or not plain or isinstance(state.stages[transposed.source].location, Inlined):
        return state
    around = len(state.stages[stage_id].iters) - 3
    state = state.apply(CacheRead(transposed.source, "local", (stage_id,)))
    state = state.apply(ComputeAt(transposed.source + 1, stage_id + 1, around))
    last = len(state.stages[transposed.source + 1].iters) - 1
    return state.apply(Annotate(transposed.source + 1, last, Annotation.VECTORIZE))
