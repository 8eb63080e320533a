"""Register tiles of products in default schedules: their size, by the throughput of a core, and the loops around them.

A tile is a few rows of a strip of the last axis: one factor is read along the strip, one value of the other serves it.
"""

from collections.abc import Sequence
from math import inf, prod

from retune.compiler.dtype import accumulated, is_float, item_bytes
from retune.compiler.ir.expr import Binary, BinaryOp, Const, Expr
from retune.compiler.ir.visit import walk
from retune.compiler.packing import most_padded
from retune.compiler.schedule.access import needs_multi_level_tiling
from retune.compiler.schedule.state import Annotation, IterKind, State
from retune.compiler.schedule.steps import Annotate, Reorder, Split
from retune.compiler.target import HardwareParams
from retune.compiler.te.tensor import Axis, ComputeOp

_VECTORS = (2, 4, 3, 5, 6, 1)
"""How many vectors of a row a product works on at once: of widths that are as fast, the first."""
_ROWS = (4, 7, 6, 5, 14, 8, 3, 2, 1)
"""How many rows, alike."""
_LATENCY, _A_CYCLE = 4, 2
"""Cycles until a sum can be added to again, and how many multiply-adds, and how many loads, begin in one: those of
Zen 2 to 5 and of Intel's cores since Skylake.
"""
_A_LOAD = 0.1
"""How many cycles a cycle of loads costs beside multiply-adds that take longer, by measurements with AVX2: what is read
comes from the second-level cache at times, and it takes power, which bounds the clock. Vectors with masks, as of
AVX-512, were not measured again.
"""
_PIECE = 1.5
"""How many vectors a part of one costs where lanes cannot be left out: what remains of a row after whole vectors is
loaded in pieces of powers of two, 15 lanes as 8, 4, 2 and 1.
"""
_AN_END, _A_FAR_END, _RAGGED = 1.1, 2.0, 1.05
"""How much longer a smaller tile at an end takes than its multiply-adds and loads, where what it reads again lies near
and where it does not, and by how much tiles that leave such ends must be faster than others.
"""
_ENDING_ROWS = 8
"""Most rows of a tile that leaves a smaller one: more, at a distance of a power of two, evict each other from the
first-level cache.
"""
_AGAIN_BYTES = 5 << 15
"""So much of one factor may a smaller tile at an end read again: it is in the second-level cache beside the other."""
_A_ROW_BYTES, _FAR = 1 << 10, 2.0
"""Where a factor is not packed and its rows are longer than this, those of a strip lie on a page each, and the product
takes so many times as long (1.1 to 2.4 measured) as one whose strips are packed.
"""
_SHORTEST = 4
"""So many times as long as a strip may a vector be: a shorter one costs no more than to choose between values by lane.
"""
_FEW_COLUMNS, _LEAST_COLUMNS = 16, 4
"""A product of fewer columns has no register tile where sums in vectors are faster, or in any case."""
_LEAST_SUMS, _MOST_IDLE = 20, 2.6
"""Sums in vectors are, of a packed factor, where fewer rows times columns wait for the latency of a sum, or where a row
costs so many times as much as its share of vectors: 5, 6, 7, 11 or 15 columns without masks, by measurements.
"""
_NEAR_BYTES = 1 << 18
"""Half of the smallest second-level cache of today's x86 cores: so much of one factor stays there beside the other."""


def row_axis_of(state: State, stage_id: int, hardware: HardwareParams | None = None) -> int | None:
    """The axis of which a few places share what a product reads along its last axis, -1 when there is none.

    Places of a window that moves by one share what they read too, beside the weights of a depthwise convolution. None
    for a stage that is no product of floating-point numbers, or reads nothing along its last axis; and for one of few
    columns, unless a register tile of it is faster than sums in vectors on `hardware`.
    """
    op = state.stages[stage_id].op
    if not isinstance(op, ComputeOp) or not op.reduce_axes or not needs_multi_level_tiling(state.dag, stage_id):
        return None
    if not is_float(op.dtype) or op.axes[-1].extent < _LEAST_COLUMNS:
        return None
    along = _read_along(state, stage_id)
    if not along:
        return None
    places = range(len(op.axes) - 1, -1, -1)
    rows = next((place for place in places if op.axes[place].extent > 1 and _is_shared(op.axes[place], along)), -1)
    is_tiled = op.axes[-1].extent >= _FEW_COLUMNS or (
        hardware is not None and _suits_few_columns(state, stage_id, rows, hardware)
    )
    return rows if is_tiled else None


def _suits_few_columns(state: State, stage_id: int, row_axis: int, hardware: HardwareParams) -> bool:
    """Whether a register tile of all columns is faster than sums in vectors, which a packed factor allows."""
    if not _is_packed(state, stage_id):
        return True
    axes = axes_of(state, stage_id)
    columns, rows = axes[-1].extent, axes[row_axis].extent if row_axis >= 0 else 1
    lanes = _lanes_for(columns, hardware, state.dag.ops[stage_id].dtypes[0])
    _, vectors = _vectors_of(columns, lanes, hardware)
    return rows * columns >= _LEAST_SUMS and vectors * lanes <= _MOST_IDLE * columns


def _read_along(state: State, stage_id: int) -> list[tuple[Expr, ...]]:
    """The indices of what a stage reads along its last axis."""
    last = axes_of(state, stage_id)[-1]
    return [indices for _, indices in state.dag.reads[stage_id] if indices and indices[-1] == last]


def _is_shared(axis: Axis, along: Sequence[tuple[Expr, ...]]) -> bool:
    """Whether what a product reads along its last axis is the same, or most of it is, for the next place of an axis."""
    used = [{node for index in indices for node in walk(index)} for indices in along]
    factors = (node for nodes in used for node in nodes if isinstance(node, Binary) and node.op is BinaryOp.MUL)
    return any(axis not in nodes for nodes in used) and not any(axis in walk(node) for node in factors)


def register_tile(
    rows: int,
    columns: int,
    hardware: HardwareParams,
    dtype: str,
    depth: int = 0,
    *,
    divides: bool = False,
    packs: bool = False,
) -> tuple[int, int]:
    """(rows, columns) of the fastest register tile of a product, by the throughput of multiply-adds and loads and the
    latency of sums, of those that divide it and leave registers for a row of one factor and a value of the other. With
    the `depth` of the sums also of those that leave smaller tiles at the ends, at those of the columns only where what
    these read again lies near; with `divides` strips must divide the columns, so only rows have smaller tiles; with
    `packs` the factor that is read along the strips is packed, with its last strip padded.
    All columns of one row, where no such tile fills half a vector that is no longer than it needs to be.
    """
    lanes = _lanes_for(columns, hardware, dtype)
    far = columns * item_bytes(dtype) > _A_ROW_BYTES
    best, least = (1, columns), inf
    for vectors in (*_VECTORS, -(-columns // lanes)):
        widest, narrowest = min(columns, vectors * lanes), max((vectors - 1) * lanes, lanes // 2) + 1
        # Fewer vectors are a candidate of their own; a strip of half a vector or less leaves lanes idle.
        for strip in range(widest, narrowest - 1, -1):
            near = 0 < depth * strip * item_bytes(dtype) <= _AGAIN_BYTES
            if columns % strip and (divides or not (near and strip == vectors * lanes)):
                continue
            held, _ = _vectors_of(strip, lanes, hardware)
            for height in _ROWS:
                # Sums, a row of one factor (of which a single row needs one vector at a time), a value of the other.
                needed = height * held + (held if height > 1 else 1) + 1
                fits = needed <= hardware.registers and height <= rows
                if not fits or (rows % height and (not depth or height > _ENDING_ROWS)):
                    continue
                cycles = sum(
                    high * wide * _cycles(each, _vectors_of(part, lanes, hardware)[1], hardware)
                    * (1.0 if (each, part) == (height, strip) else _AN_END if near else _A_FAR_END)
                    for each, high in _parts(rows, height)
                    for part, wide in _parts(columns, strip)
                )  # fmt: skip
                cycles *= _RAGGED if rows % height or columns % strip else 1.0
                is_packed = not columns % strip or (packs and columns + -columns % strip <= most_padded(columns))
                cycles *= 1.0 if is_packed or not far else _FAR
                if cycles < least:
                    best, least = (height, strip), cycles
    return best


def _lanes_for(columns: int, hardware: HardwareParams, dtype: str) -> int:
    """The lanes of a vector that a row of at least one column fills to more than half."""
    lanes = max(1, hardware.vector_unit_bytes // item_bytes(accumulated(dtype)))
    while columns <= lanes // 2:
        lanes //= 2
    return lanes


def _parts(extent: int, size: int) -> tuple[tuple[int, int], ...]:
    """The sizes of the parts of an extent, and how many there are of each."""
    count, rest = divmod(extent, size)
    return ((size, count), (rest, 1)) if rest else ((size, count),)


def _vectors_of(strip: int, lanes: int, hardware: HardwareParams) -> tuple[int, float]:
    """How many vectors a strip has, and how many whole ones cost as much."""
    rest = strip % lanes
    pieces, each = (min(rest, 1), 1.0) if hardware.lane_masks else (rest.bit_count(), _PIECE)
    return strip // lanes + pieces, strip // lanes + pieces * each


def _cycles(height: int, vectors: float, hardware: HardwareParams) -> float:
    """Of one step of the sums of a register tile."""
    # What comes in rows comes from the second-level cache, which takes twice as long.
    loads = (height + 2 * vectors) / _A_CYCLE
    cycles = max(height * vectors / _A_CYCLE, loads, _LATENCY)
    return cycles + (0.0 if hardware.lane_masks else _A_LOAD * loads)


def split_for_tile(
    state: State, stage_id: int, around: int, row_axis: int, hardware: HardwareParams
) -> tuple[State, list[str], list[str]]:
    """The loops of `around`, a product or the stage that reads it, split for the product's register tile: the names of
    the spatial loops outside the tile, and of those of the tile.
    """
    op, axes = state.stages[stage_id].op, axes_of(state, around)
    assert isinstance(op, ComputeOp), "only what is computed has a reduction"
    last = len(axes) - 1
    rows = axes[row_axis].extent if row_axis >= 0 else 1
    # Rows of a depthwise convolution share parts of their windows, of which smaller tiles have less.
    is_depthwise = len(_read_along(state, stage_id)) > 1
    depth = 0 if is_depthwise else prod(axis.extent for axis in op.reduce_axes)
    columns, every = columns_alike(op, hardware), axes[last].extent
    packs = _is_packed(state, stage_id)
    height, strip = register_tile(rows, columns, hardware, op.dtype, depth, divides=columns < every, packs=packs)
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


def _is_packed(state: State, stage_id: int) -> bool:
    """Whether what a product reads along its last axis is a constant that `PackConstants` packs: one that is read once,
    by plain indices.
    """
    dag = state.dag
    last = axes_of(state, stage_id)[-1]
    found = [(producer, indices) for producer, indices in dag.reads[stage_id] if indices and indices[-1] == last]
    return bool(found) and all(
        producer in dag.layout_free
        and len(dag.readers[producer]) == 1
        and sum(producer == other for other, _ in dag.reads[stage_id]) == 1
        and all(isinstance(index, (Axis, Const)) for index in indices)
        for producer, indices in found
    )


def columns_alike(op: ComputeOp, hardware: HardwareParams) -> int:
    """How many neighbors along the last axis of a product read the same of the factor that is broadcast: all, or the
    results of a group of a grouped convolution, unless these are much less than a vector. Strips must divide the
    latter: one that reads several groups chooses among them by lane.
    """
    last, lanes = op.axes[-1], hardware.vector_unit_bytes // item_bytes(accumulated(op.dtype))
    groups = [
        int(node.rhs.value)
        for node in walk(op.body)
        if isinstance(node, Binary)
        and node.op is BinaryOp.FLOORDIV
        and node.lhs == last
        and isinstance(node.rhs, Const)
    ]
    return min((size for size in groups if _SHORTEST * size >= lanes and last.extent % size == 0), default=last.extent)


def order_for_tile(state: State, stage_id: int, outer: Sequence[str], inner: Sequence[str]) -> State:
    """The loops of a stage in this order, the last one in vectors, the one around it unrolled."""
    return as_tile(reordered(state, stage_id, [*outer, *inner]), stage_id, len(inner))


def as_tile(state: State, stage_id: int, loops: int) -> State:
    """The last loop of a stage in vectors, and the one around it unrolled if the tile has several loops."""
    last = len(state.stages[stage_id].iters) - 1
    if loops > 1:
        state = state.apply(Annotate(stage_id, last - 1, Annotation.UNROLL))
    return state.apply(Annotate(stage_id, last, Annotation.VECTORIZE))


def reordered(state: State, stage_id: int, names: Sequence[str]) -> State:
    """The loops of a stage in the order of these names."""
    order = [_place(state, stage_id, name) for name in names]
    return state if order == sorted(order) else state.apply(Reorder(stage_id, tuple(order)))


def axes_of(state: State, stage_id: int) -> tuple[Axis, ...]:
    """The axes of a stage that is computed."""
    op = state.stages[stage_id].op
    assert isinstance(op, ComputeOp), "only what is computed has axes"
    return op.axes


def axis_name(loop: str) -> str:
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
    own, axes, reads = axes_of(state, stage_id), axes_of(state, around), state.dag.reads[stage_id]
    loops = state.stages[around].iters
    outer = [one.name for one in loops if one.kind is IterKind.SPATIAL and one.name not in inner]
    right, indices = next(read for read in reads if read[1] and read[1][-1] == own[-1])
    used = {node for index in indices for node in walk(index)}
    shared = {named.name: axis for axis, named in zip(own[:-1], axes, strict=False) if axis in used}
    # Loops of a product that both factors have stay outside: each of their iterations is a product of its own.
    copies = prod(axis.extent for axis in shared.values())
    strips = [name for name in outer if axis_name(name) == axes[-1].name]
    rows = [name for name in outer if name not in strips and axis_name(name) not in shared]
    if bytes_of(state, right) <= copies * _NEAR_BYTES or not strips or not rows:
        return state, outer
    first = [name for name in outer if axis_name(name) in shared]
    left = max((bytes_of(state, source) for source, _ in reads if source != right), default=0) / copies
    blocked, blocks, inside, count, share = state, list[str](), list(rows), 1, left
    while share > _NEAR_BYTES and inside:
        name = inside.pop(0)
        extent = _extent(blocked, around, name)
        fitting = [size for size in range(2, extent) if extent % size == 0 and share * size <= extent * _NEAR_BYTES]
        if fitting:
            blocked = blocked.apply(Split(around, _place(blocked, around, name), extent, (fitting[-1],)))
            blocks.append(f"{name}.0")
            inside.insert(0, f"{name}.1")
            count *= extent // fitting[-1]
            break
        blocks.append(name)
        count *= extent
        share /= extent
    # Every block reads the whole factor. Without blocks every strip reads all rows, which may be less.
    if count * bytes_of(state, right) / copies > prod(_extent(state, around, name) for name in strips) * left:
        return state, [*first, *strips, *rows]
    return blocked, [*first, *blocks, *strips, *inside]


def _extent(state: State, stage_id: int, name: str) -> int:
    extent = state.stages[stage_id].iters[_place(state, stage_id, name)].extent
    assert isinstance(extent, int), "the loops of a default schedule have extents"
    return extent


def bytes_of(state: State, place: int) -> int:
    """The bytes of what a stage computes, or of an input."""
    source = state.dag.ops[place]
    return prod(source.shape) * item_bytes(source.dtypes[0])
