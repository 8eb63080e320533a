"""The default schedule of a compute graph on CPUs: fast to derive and correct, without search or measurement.

Elementwise producers are inlined, outer loops run in parallel, and stages without data reuse (elementwise, pooling,
softmax) get a vector loop over their last axis; one that transposes its input is blocked, so that all of a cache line
that was read is used. Floating-point products and convolutions get a register tile that fits the machine's registers: a
few rows of a strip of the last axis, with the reduction around them. Other stages that would need tiling keep their
naive loops, which tuning improves.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from retune.compiler.dtype import accumulated, is_float, item_bytes
from retune.compiler.ir.expr import Const, Select
from retune.compiler.ir.visit import walk
from retune.compiler.schedule.access import (
    consumers,
    elementwise_match,
    is_given_to_function,
    is_strictly_inlineable,
    needs_multi_level_tiling,
    single_elementwise_consumer,
)
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, Inlined, IterKind, State
from retune.compiler.schedule.steps import Annotate, CacheRead, ComputeAt, ComputeInline, Fuse, Reorder, Split, Step
from retune.compiler.target import HardwareParams
from retune.compiler.te.tensor import Axis, ComputeOp

# Shares of threads differ by one iteration at most, which is little of so many.
_PARALLEL_ITERATIONS = 64
_VECTORS = (2, 4, 3, 5, 6, 1)
"""How many vectors of a row a product works on at once: of widths that are as fast, the first."""
_ROWS = (4, 7, 6, 5, 14, 8, 3, 2, 1)
"""How many rows, alike."""
_LATENCY, _A_CYCLE = 4, 2
"""Cycles until a sum can be added to again, and how many multiply-adds, and how many loads, begin in one: those of
Zen 2 to 5 and of Intel's cores since Skylake.
"""
_PIECE = 1.5
"""How many vectors a part of one costs where lanes cannot be left out: what remains of a row after whole vectors is
loaded in pieces of powers of two, 15 lanes as 8, 4, 2 and 1.
"""
_LEAST_COLUMNS = 16
"""A product whose rows are shorter has no register tile."""
_CACHE_BYTES = 1 << 22
"""A matrix of so many bytes does not stay in the caches of a CPU's core."""
_NEAR_BYTES = 1 << 18
"""Half of the smallest second-level cache of today's x86 cores: so much of one factor stays there beside the other."""
_DEPTHS = (256, 128)
"""How much of a long sum is done at once."""
_MANY_ROWS = 256
"""So many rows are worth the copying of what they meet."""
_BLOCK, _NARROW = (16, 8, 32, 24, 12), (8, 16, 4)
"""How much a transposing copy takes at once of the axis along which its input lies and of that along which its result
does: the first that divides the axis. A cache line has 16 float32; lines of 8 rows whose addresses differ by a power of
two still fit the ways of a first-level cache.
"""
_USUAL = HardwareParams(num_cores=1)
_WHOLE = 64
"""An axis of at most so many elements that none of these divides is taken whole."""


@dataclass(frozen=True, slots=True)
class _Large:
    """A product whose factor `right`, read along the last axis, no cache holds: `rows` is the axis of which a few
    places share it, `tile` how many of them and how many columns, `depth` how much of the sum is done at once.
    """

    stage: int
    right: int
    rows: int
    tile: tuple[int, int]
    depth: int


def default_steps(dag: ComputeDAG, hardware: HardwareParams = _USUAL) -> tuple[Step, ...]:
    """Steps of the default schedule of `dag`, with register tiles that fit the registers of `hardware`."""
    return _steps(_inlined(dag), hardware)


def reference_steps(dag: ComputeDAG, hardware: HardwareParams = _USUAL) -> tuple[Step, ...]:
    """Steps of a program that computes the same numbers to the last bit, and large products several times as fast: a
    strip of one factor is copied to where it stays in the cache while it meets all rows of the other. With several
    large products it is the default schedule.
    """
    state = _inlined(dag)
    large = [found for number in range(len(state.stages)) if (found := _large(state, number, hardware))]
    if len(large) != 1:
        return _steps(state, hardware)
    (product,) = large
    state = state.apply(CacheRead(product.right, "local", (product.stage,)))
    product = replace(product, stage=product.stage + 1, right=product.right + 1)
    return _steps(_packed(state, product), hardware, {product.stage, product.right})


def _inlined(dag: ComputeDAG) -> State:
    state = State.initial(dag)
    # From readers to what they read: chains collapse into the last stage.
    for stage_id in range(len(state.stages) - 1, -1, -1):
        if _always_inlined(state, stage_id):
            state = state.apply(ComputeInline(stage_id))
    return state


def _steps(state: State, hardware: HardwareParams, done: Collection[int] = ()) -> tuple[Step, ...]:
    """The steps so far, and those of all stages but some."""
    given, finished = state.stages, set(done)
    for number, stage in enumerate(given):
        stands = not isinstance(stage.location, Inlined) and number not in finished
        if isinstance(stage.op, ComputeOp) and stands and stage.op.axes:
            # A copy of what a stage reads stands before it, so later stages have higher numbers by then.
            added = len(state.stages) - len(given)
            row_axis, reader = row_axis_of(state, number + added), _reader_of(state, number + added)
            # Of several products that one stage reads, the first is inside its loops.
            if row_axis is None or reader is None or reader - added in finished:
                state = _annotated(state, number + added, hardware)
            else:
                state = _with_reader(state, number + added, reader, row_axis, hardware)
                finished.add(reader - added)
    return tuple(step for step in state.steps if isinstance(step, Step))


def _large(state: State, stage_id: int, hardware: HardwareParams) -> _Large | None:
    """What is known of a large product of matrices whose sizes are multiples of its tiles; None for anything else."""
    op, rows = state.stages[stage_id].op, row_axis_of(state, stage_id)
    if rows is None or rows < 0 or not isinstance(op, ComputeOp) or len(op.reduce_axes) != 1:
        return None
    columns, height = op.axes[-1].extent, op.axes[rows].extent
    # A strip of 32 columns times this depth of float32 is 16 or 32 KiB: it stays in the first-level cache.
    depth = next((size for size in _DEPTHS if op.reduce_axes[0].extent % size == 0), 0)
    tile = register_tile(height, columns, hardware, op.dtype)
    if not depth or tile[0] == 1 or tile[1] == columns or height < _MANY_ROWS:
        return None
    along = {place for place, indices in state.dag.reads[stage_id] if indices and indices[-1] == op.axes[-1]}
    right = min(along)
    read = [place for place, _ in state.dag.reads[stage_id]]
    # An input of free layout is packed beforehand, and an inlined stage lies nowhere that could be copied.
    stands = right not in state.dag.layout_free and not isinstance(state.stages[right].location, Inlined)
    if len(along) != 1 or read.count(right) != 1 or not stands:
        return None
    source = state.dag.ops[right]
    nbytes = prod(source.shape) * item_bytes(source.dtypes[0])
    # A factor that fits a cache is read from there again without a copy.
    return _Large(stage_id, right, rows, tile, depth) if nbytes >= _CACHE_BYTES else None


def _packed(state: State, product: _Large) -> State:
    """before: for i: for j: for k: c[i, j] += …
    after:  parallel j.0: for k.0: copy b; for i.0: for k.1: unroll i.1: vector j.1: c[i, j] += …
    """
    stage, rows = product.stage, product.rows
    op = state.stages[stage].op
    assert isinstance(op, ComputeOp), "only what is computed has a reduction"
    last = len(op.axes) - 1
    height, strip = product.tile
    # From the last loop on, so that the numbers of those before it stay right.
    for place, size in ((last + 1, product.depth), (last, strip), (rows, height)):
        extent = state.stages[stage].iters[place].extent
        state = state.apply(Split(stage, place, extent if isinstance(extent, int) else 0, (size,)))
    around = [place + (place > rows) for place in range(last) if place != rows]
    order = (*around, last + 1, last + 3, rows, last + 4, rows + 1, last + 2)
    state = state.apply(Reorder(stage, order))
    if around:
        state = state.apply(Fuse(stage, tuple(range(len(around) + 1))))
    state = state.apply(ComputeAt(product.right, stage, 1))
    for place, how in ((0, Annotation.PARALLEL), (4, Annotation.UNROLL), (5, Annotation.VECTORIZE)):
        state = state.apply(Annotate(stage, place, how))
    return state.apply(Annotate(product.right, len(state.stages[product.right].iters) - 1, Annotation.VECTORIZE))


def _always_inlined(state: State, stage_id: int) -> bool:
    stage = state.stages[stage_id]
    if not stage.is_compute or stage.has_reduce_iter or stage_id in state.dag.output_ids:
        return False
    if is_given_to_function(state, stage_id):
        return False
    if is_strictly_inlineable(state.dag, stage_id):
        return bool(consumers(state, stage_id))
    return _is_read_once(state.dag, stage_id)


def _is_read_once(dag: ComputeDAG, stage_id: int) -> bool:
    """Whether one stage without reduction reads every element once: inlining repeats nothing, however dear it is."""
    reader = next(iter(dag.readers[stage_id]), None)
    if reader is None or not elementwise_match(dag, stage_id, reader):
        return False
    op, reading = dag.ops[stage_id], dag.ops[reader]
    if not isinstance(op, ComputeOp) or not isinstance(reading, ComputeOp) or reading.reduce_axes:
        return False
    once = [source for source, _ in dag.reads[reader]].count(stage_id) == 1
    # A branch would stand inside the reader's vectors.
    return once and not any(isinstance(node, Select) for node in walk(op.body))


def _annotated(state: State, stage_id: int, hardware: HardwareParams) -> State:
    """Outer loops in parallel, the last axis in vectors; a rank-1 stage gets the one that suits its size."""
    turned = _turned(state, stage_id)
    if turned is not None:
        state = _blocked(state, stage_id, turned)
    row_axis = row_axis_of(state, stage_id)
    if row_axis is not None:
        state = _in_strips(state, stage_id, row_axis, hardware)
    stage = state.stages[stage_id]
    spatial = [index for index, iterator in enumerate(stage.iters) if iterator.kind is IterKind.SPATIAL]
    tiled = turned is None and needs_multi_level_tiling(state.dag, stage_id)
    last = spatial[-1]
    if not tiled and stage.iters[last].extent != 1 and not _reduces_rows(state, stage_id):
        state = state.apply(Annotate(stage_id, last, Annotation.VECTORIZE))
        # The loops inside a block do not run in parallel.
        spatial = spatial[:-1] if turned is None else spatial[:-2]
    elif row_axis is not None:
        first = next(index for index, iterator in enumerate(stage.iters) if iterator.kind is IterKind.REDUCTION)
        spatial = [index for index in spatial if index < first]
    state, fused = _in_parallel(state, stage_id, spatial)
    return state if turned is None or not fused else _copied(state, stage_id, turned)


def _reduces_rows(state: State, stage_id: int) -> bool:
    """Whether a stage joins what lies side by side in memory: lowering brings these sums into vectors, and the lanes of
    several rows would each read a line of their own.
    """
    op = state.stages[stage_id].op
    if not isinstance(op, ComputeOp) or not op.reduce_axes:
        return False
    fastest = [indices[-1] for _, indices in state.dag.reads[stage_id] if indices]
    return op.reduce_axes[-1] in fastest and op.axes[-1] not in fastest


def _in_parallel(state: State, stage_id: int, places: Sequence[int]) -> tuple[State, int]:
    """The outermost loops of a stage, of those at `places`, fused into one that runs in parallel; and how many these
    are, 0 where they have a single iteration.
    """
    stage = state.stages[stage_id]
    outer: list[int] = []
    total = 1
    for index in places:
        extent = stage.iters[index].extent
        if total >= _PARALLEL_ITERATIONS or not isinstance(extent, int):
            break
        outer.append(index)
        total *= extent
    if total == 1:
        return state, 0
    if len(outer) > 1:
        state = state.apply(Fuse(stage_id, tuple(outer)))
    return state.apply(Annotate(stage_id, 0, Annotation.PARALLEL)), len(outer)


@dataclass(frozen=True, slots=True)
class _Turned:
    """A stage that reads `source` along another axis than its last: blocks of `block` places of `axis` and `narrow` of
    the last one.
    """

    source: int
    axis: int
    block: int
    narrow: int


def _turned(state: State, stage_id: int) -> _Turned | None:
    """What is known of a stage without reduction whose input lies in memory along a long axis that is not its last."""
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
                return _Turned(source, number, block, narrow)
    return None


def _part(extent: int, sizes: Collection[int]) -> int:
    return next((size for size in sizes if extent % size == 0), extent if extent <= _WHOLE else 1)


def row_axis_of(state: State, stage_id: int) -> int | None:
    """The axis of which a few places share what a product reads along its last axis, -1 when there is none.

    None for a stage that is no product of floating-point numbers, or reads nothing along its last axis.
    """
    op = state.stages[stage_id].op
    if not isinstance(op, ComputeOp) or not op.reduce_axes or not needs_multi_level_tiling(state.dag, stage_id):
        return None
    if not is_float(op.dtype) or op.axes[-1].extent < _LEAST_COLUMNS:
        return None
    along = [indices for _, indices in state.dag.reads[stage_id] if indices and indices[-1] == op.axes[-1]]
    if not along:
        return None
    used = {node for index in along[0] for node in walk(index)}
    return max((place for place, axis in enumerate(op.axes) if axis.extent > 1 and axis not in used), default=-1)


def register_tile(rows: int, columns: int, hardware: HardwareParams, dtype: str) -> tuple[int, int]:
    """(rows, columns) of the fastest register tile of a product, by the throughput of multiply-adds and loads and the
    latency of sums, of those that divide it and leave registers for a row of one factor and a value of the other. All
    columns of one row, where no such tile fills half a vector.
    """
    lanes = max(1, hardware.vector_unit_bytes // item_bytes(accumulated(dtype)))
    best, fastest = (1, columns), 0.0
    for vectors in (*_VECTORS, -(-columns // lanes)):
        widest, narrowest = min(columns, vectors * lanes), max((vectors - 1) * lanes, lanes // 2) + 1
        # Fewer vectors are a candidate of their own; a strip of half a vector or less leaves lanes idle.
        for strip in (size for size in range(widest, narrowest - 1, -1) if columns % size == 0):
            pieces = 0 if hardware.lane_masks else (strip % lanes).bit_count()
            held = strip // lanes + pieces if pieces else vectors
            spent = strip // lanes + _PIECE * pieces if pieces else vectors
            for height in _ROWS:
                # Sums, a row of one factor (of which a single row needs one vector at a time), a value of the other.
                needed = height * held + (held if height > 1 else 1) + 1
                if rows % height or needed > hardware.registers:
                    continue
                # What comes in rows comes from the second-level cache, which takes twice as long.
                cycles = max(height * spent / _A_CYCLE, (height + 2 * spent) / _A_CYCLE, _LATENCY)
                if (speed := height * strip / cycles) > fastest:
                    best, fastest = (height, strip), speed
    return best


def _in_strips(state: State, stage_id: int, row_axis: int, hardware: HardwareParams) -> State:
    """The reduction outside a few rows of a strip of the last axis.

    before: for i: for j: for k: c[i, j] += …
    after:  for i.0: for j.0: for k: unroll i.1: vector j.1: c[i, j] += …
    """
    state, outer, inner = _tiled(state, stage_id, stage_id, row_axis, hardware)
    reductions = [one.name for one in state.stages[stage_id].iters if one.kind is IterKind.REDUCTION]
    return _register_tile(state, stage_id, [*outer, *reductions], inner)


def _with_reader(state: State, stage_id: int, reader: int, row_axis: int, hardware: HardwareParams) -> State:
    """As `_in_strips`, inside the loops of the only stage that reads the product, element by element: a tile is used
    while it is in the first-level cache.

    before: for i: for j: for k: c[i, j] += …          for i: for j: d[i, j] = f(c[i, j])
    after:  for i.0: for j.0: {for k: unroll i.1: vector j.1: c[i, j] += …; unroll i.1: vector j.1: d[i, j] = …}
    """
    state, outer, inner = _tiled(state, stage_id, reader, row_axis, hardware)
    state = _register_tile(state, reader, outer, inner)
    if not outer:
        return _annotated(state, stage_id, hardware)
    state, fused = _in_parallel(state, reader, range(len(outer)))
    state = state.apply(ComputeAt(stage_id, reader, len(outer) - max(fused, 1)))
    op, axes = state.stages[stage_id].op, state.stages[reader].op
    assert isinstance(op, ComputeOp), "only what is computed has a reduction"
    assert isinstance(axes, ComputeOp), "only what is computed reads element by element"
    named = {axis.name: own.name for axis, own in zip(axes.axes, op.axes, strict=True)}
    tile = [named[_axis_of(name)] for name in inner]
    loops = state.stages[stage_id].iters
    around = [one.name for one in loops if one.kind is IterKind.SPATIAL and one.name not in tile]
    reductions = [one.name for one in loops if one.kind is IterKind.REDUCTION]
    return _register_tile(state, stage_id, [*around, *reductions], tile)


def _reader_of(state: State, stage_id: int) -> int | None:
    reader = single_elementwise_consumer(state, stage_id)
    # A copy of its input, for a transpose, or a tile of its own would stand in the way of the product's tile.
    plain = reader is not None and row_axis_of(state, reader) is None and _turned(state, reader) is None
    return reader if plain and not is_given_to_function(state, stage_id) else None


def _tiled(
    state: State, stage_id: int, around: int, row_axis: int, hardware: HardwareParams
) -> tuple[State, list[str], list[str]]:
    """The loops of `around`, a product or the stage that reads it, split for the product's register tile: the names of
    the spatial loops outside the tile, and of those of the tile.
    """
    op, axes = state.stages[stage_id].op, _axes_of(state, around)
    assert isinstance(op, ComputeOp), "only what is computed has a reduction"
    last = len(axes) - 1
    rows = axes[row_axis].extent if row_axis >= 0 else 1
    height, strip = register_tile(rows, axes[last].extent, hardware, op.dtype)
    inner: list[str] = []
    for axis, size in ((last, strip), (row_axis, height)):
        if axis < 0:
            continue
        name, extent = axes[axis].name, axes[axis].extent
        if size == extent and (axis == last or extent > 1):
            inner.insert(0, name)
        elif 1 < size < extent:
            state = state.apply(Split(around, _place(state, around, name), extent, (size,)))
            inner.insert(0, f"{name}.1")
    return (*_outer_order(state, stage_id, around, inner), inner)


def _register_tile(state: State, stage_id: int, outer: Sequence[str], inner: Sequence[str]) -> State:
    """The loops of a stage in this order, the last one in vectors, the one around it unrolled."""
    order = [_place(state, stage_id, name) for name in (*outer, *inner)]
    if order != sorted(order):
        state = state.apply(Reorder(stage_id, tuple(order)))
    if len(inner) > 1:
        state = state.apply(Annotate(stage_id, len(order) - 2, Annotation.UNROLL))
    return state.apply(Annotate(stage_id, len(order) - 1, Annotation.VECTORIZE))


def _axes_of(state: State, stage_id: int) -> tuple[Axis, ...]:
    op = state.stages[stage_id].op
    assert isinstance(op, ComputeOp), "only what is computed has axes"
    return op.axes


def _axis_of(loop: str) -> str:
    """The axis of a loop or of a part of it."""
    return loop.partition(".")[0]


def _place(state: State, stage_id: int, name: str) -> int:
    return next(place for place, one in enumerate(state.stages[stage_id].iters) if one.name == name)


def _outer_order(state: State, stage_id: int, around: int, inner: Sequence[str]) -> tuple[State, list[str]]:
    """The order of the spatial loops of `around` outside the register tile `inner` of a product, with one of them split
    where that saves traffic.

    As they are, every few rows read the whole factor that is read along the last axis. Where that one stays in no near
    cache, a block of rows that does stays there while one strip of the factor after the other meets it:

    before: for i.0: for j.0: for k: …
    after:  for i.0.0: for j.0: for i.0.1: for k: …
    """
    own, axes, reads = _axes_of(state, stage_id), _axes_of(state, around), state.dag.reads[stage_id]
    loops = state.stages[around].iters
    outer = [one.name for one in loops if one.kind is IterKind.SPATIAL and one.name not in inner]
    right, indices = next(read for read in reads if read[1] and read[1][-1] == own[-1])
    used = {node for index in indices for node in walk(index)}
    shared = {named.name: axis for axis, named in zip(own[:-1], axes, strict=False) if axis in used}
    # Loops of a product that both factors have stay outside: each of their iterations is a product of its own.
    copies = prod(axis.extent for axis in shared.values())
    strips = [name for name in outer if _axis_of(name) == axes[-1].name]
    rows = [name for name in outer if name not in strips and _axis_of(name) not in shared]
    if _bytes_of(state, right) <= copies * _NEAR_BYTES or not strips or not rows:
        return state, outer
    share = max((_bytes_of(state, source) for source, _ in reads if source != right), default=0) / copies
    blocks: list[str] = []
    while share > _NEAR_BYTES and rows:
        name = rows.pop(0)
        place = _place(state, around, name)
        extent = state.stages[around].iters[place].extent
        assert isinstance(extent, int), "the loops of a default schedule have extents"
        fitting = [size for size in range(2, extent) if extent % size == 0 and share * size <= extent * _NEAR_BYTES]
        if fitting:
            state = state.apply(Split(around, place, extent, (fitting[-1],)))
            blocks.append(f"{name}.0")
            rows.insert(0, f"{name}.1")
            break
        blocks.append(name)
        share /= extent
    return state, [*(name for name in outer if _axis_of(name) in shared), *blocks, *strips, *rows]


def _bytes_of(state: State, place: int) -> int:
    source = state.dag.ops[place]
    return prod(source.shape) * item_bytes(source.dtypes[0])


def _blocked(state: State, stage_id: int, turned: _Turned) -> State:
    """before: for h: for w: for c: y[h, w, c] = x[c, h, w]
    after:  for h: for w.0: for c.0: for w.1: for c.1: …
    """
    last = len(state.stages[stage_id].iters) - 1
    # From the last loop on, so that the number of the other one stays right.
    for place, size in ((last, turned.narrow), (turned.axis, turned.block)):
        extent = state.stages[stage_id].iters[place].extent
        state = state.apply(Split(stage_id, place, extent if isinstance(extent, int) else 0, (size,)))
    inside = (turned.axis + 1, last + 2)
    around = [place for place in range(last + 3) if place not in inside]
    return state.apply(Reorder(stage_id, (*around, *inside)))


def _copied(state: State, stage_id: int, turned: _Turned) -> State:
    """A block of the input is copied as it lies, and read in the other order from the copy: its rows lie side by side,
    where those of the input may be so far apart that they push each other out of the cache.
    """
    reads = [indices for source, indices in state.dag.reads[stage_id] if source == turned.source]
    # Of anything else, such as what is read inside an image alone, a block could reach outside.
    plain = all(isinstance(index, Axis | Const) for indices in reads for index in indices)
    if len(reads) != 1 or not plain or isinstance(state.stages[turned.source].location, Inlined):
        return state
    around = len(state.stages[stage_id].iters) - 3
    state = state.apply(CacheRead(turned.source, "local", (stage_id,)))
    state = state.apply(ComputeAt(turned.source + 1, stage_id + 1, around))
    last = len(state.stages[turned.source + 1].iters) - 1
    return state.apply(Annotate(turned.source + 1, last, Annotation.VECTORIZE))
