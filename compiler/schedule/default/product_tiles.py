"""Register tiles of products in default schedules: their size, by the throughput of a core, and the loops around them.

A tile is a few rows of a strip of the last axis: one factor is read along the strip, each value of the other serves the
whole strip.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import TypeGuard

from retune.compiler.core.dtype import HALVES, item_bytes, sum_type
from retune.compiler.core.packing import most_padded
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.expr import Binary, BinaryOp, Const, Expr
from retune.compiler.ir.operators import SHIFTS
from retune.compiler.ir.visit import walk
from retune.compiler.schedule.default.panels import PANEL_ELEMENTS, Panel, find_panel
from retune.compiler.schedule.default.stages import NEAR_BYTES, axes_of, axis_name, bytes_of, extent_of, loop_number
from retune.compiler.schedule.reads import needs_multi_level_tiling
from retune.compiler.schedule.state import Annotation, IterKind, State
from retune.compiler.schedule.steps import UNROLL_PRAGMA, Annotate, Pragma, Reorder, Split
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp

_VECTORS = (2, 4, 3, 5, 6, 1)
"""Vectors of a row that a product computes together; of equally fast widths the first wins."""
_ROWS = (4, 7, 6, 5, 14, 8, 3, 2, 1)
"""Rows, likewise."""
_LATENCY, _PER_CYCLE = 4, 2
"""Latency of a sum, and multiply-adds, or loads, per cycle: of Zen 2 to 5 and Intel's cores since Skylake."""
_WIDE_LATENCY = 5
"""The same with AVX-512, measured: 8 sums in flight reach 0.8 of the peak of Sapphire Rapids, 14 to 28 reach 0.95."""
_LOAD_COST = 0.1
"""Extra cycles per cycle of loads that multiply-adds hide, measured with AVX2: loads come from the second-level cache
at times, and their power bounds the clock.
"""
_PIECE_COST = 1.5
"""Cost, in vectors, of a piece of a vector without masks: 15 lanes are loaded as 8, 4, 2 and 1."""
_CONVERSION_CYCLES = 1.0
"""Extra cycles a step for each vector of 16-bit floats of AVX-512, which is converted by two instructions on the ports
of the multiply-adds (Ice Lake, the same with float16 and bfloat16; 0.1 to 0.7 on Zen 4, none with AVX2).
"""
TAIL_COST_L2, TAIL_COST_MEMORY, TAIL_MARGIN = 1.1, 2.0, 1.05
"""Slowdown of a smaller tile at an end, whose reloads come from the second-level cache, or from memory; and the speedup
that tiles with such ends must have over others.
"""
_TAIL_ROWS = 8
"""Most rows of a tile that leaves a smaller tile: more, a power of two apart, evict each other from L1."""
_RELOAD_BYTES = 5 << 15
"""Most bytes of a factor that a smaller tile at an end reloads from the second-level cache."""
_ROW_BYTES, _UNPACKED_COST = 1 << 10, 2.0
"""Rows of an unpacked factor longer than this are on a page each, and the product takes this many times as long (1.1 to
2.4 measured) as with packed strips.
"""
_SSE_BYTES = 16
"""The width of SSE's registers, of which x86 has 16."""
_BYTES_PER_WORD, _FEW_REGISTERS, _PAIR_REGISTERS = 4, 16, 2
"""Without an instruction for four bytes, as on most machines of few registers, products are added to sums by a second
instruction: they take so many registers more.
"""
_INTERLEAVED = 2
"""Most vectors of a strip that is interleaved while it is read: 1.2 times as fast as 4."""
_UNROLLED = 600
"""Vectors of products that are unrolled: a window of five rows, with one of zeros, in pairs of rows."""
_STRIP_RATIO = 4
"""Most lanes of a vector over the columns of a group: shorter groups cost no more than choices by lane."""
_FEW_COLUMNS, _LEAST_COLUMNS = 16, 4
"""Products of fewer columns have no register tile where sums in vectors are faster, or in any case."""
_LEAST_SUMS, _MOST_IDLE = 20, 2.6
"""Sums in vectors are faster, with a packed factor, where fewer rows times columns wait for the latency of a sum, or
where a row costs so many times as much as its share of vectors: 5, 6, 7, 11 or 15 columns without masks, by
measurements.
"""


def row_axis_of(state: State, stage_id: int, hardware: HardwareParams | None = None) -> int | None:
    """The axis along which a product reads the same elements as along its last axis, -1 when there is none.

    Points of a depthwise convolution share the weights, and most of their windows at stride 1. None for a
    stage that is no product, or reads nothing along its last axis; and for a product of few columns, unless a register
    tile is faster than sums in vectors on `hardware`.
    """
    op = state.stages[stage_id].op
    if not isinstance(op, ComputeOp) or not op.reduce_axes or not needs_multi_level_tiling(state.dag, stage_id):
        return None
    if op.axes[-1].extent < _LEAST_COLUMNS:
        return None
    reads = _read_along(state, stage_id)
    if not reads:
        return None
    axes = range(len(op.axes) - 1, -1, -1)
    rows = next((number for number in axes if op.axes[number].extent > 1 and _is_shared(op.axes[number], reads)), -1)
    is_tiled = op.axes[-1].extent >= _FEW_COLUMNS or (
        hardware is not None and _suits_few_columns(state, stage_id, rows, hardware)
    )
    return rows if is_tiled else None


def _suits_few_columns(state: State, stage_id: int, row_axis: int, hardware: HardwareParams) -> bool:
    """Whether a register tile of all columns is faster than sums in vectors, which need a packed factor."""
    if not _is_packed(state, stage_id):
        return True
    axes = axes_of(state, stage_id)
    columns, rows = axes[-1].extent, axes[row_axis].extent if row_axis >= 0 else 1
    lanes = _lanes_for(columns, hardware, state.dag.ops[stage_id].dtypes[0])
    _, vectors = _vectors_of(columns, lanes, hardware)
    return rows * columns >= _LEAST_SUMS and vectors * lanes <= _MOST_IDLE * columns


def _read_along(state: State, stage_id: int) -> list[tuple[Expr, ...]]:
    """The indices of a stage's reads along its last axis."""
    last = axes_of(state, stage_id)[-1]
    return [indices for _, indices in state.dag.reads[stage_id] if indices and indices[-1] == last]


def _is_shared(axis: Axis, reads: Sequence[tuple[Expr, ...]]) -> bool:
    """Whether any of the `reads` along a product's last axis is the same for the next index of `axis`."""
    return any(all(axis not in walk(index) for index in indices) for indices in reads)


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
    latency of sums. Candidates divide the product and leave registers for a row of one factor and a value of the other.
    `dtype` is that of the sums, or of a 16-bit factor along the strips. With the `depth` of the sums, in words of a
    sum's size, candidates may leave smaller tiles at the ends, of the columns only where their reloads are in a near
    cache; with `divides` strips must divide the columns, so only rows have smaller tiles; with `packs` the factor that
    is read along the strips is packed, with its last strip padded.
    Without a tile that fills half of a vector no longer than necessary: one row of all columns.
    """
    lanes = _lanes_for(columns, hardware, dtype)
    converts = dtype in HALVES and hardware.lane_masks
    # SSE's instructions overwrite an operand: a product of two factors that are still needed takes a register.
    spare = 2 if hardware.vector_unit_bytes <= _SSE_BYTES and hardware.registers <= _FEW_REGISTERS else 1
    far = columns * item_bytes(dtype) > _ROW_BYTES
    best, least = (1, columns), inf
    for vectors in (*_VECTORS, -(-columns // lanes)):
        widest, narrowest = min(columns, vectors * lanes), max((vectors - 1) * lanes, lanes // 2) + 1
        # Fewer vectors are another candidate; a strip of half a vector or less leaves lanes idle.
        for strip in range(widest, narrowest - 1, -1):
            near = 0 < depth * strip * item_bytes(sum_type(dtype)) <= _RELOAD_BYTES
            if columns % strip and (divides or not (near and strip == vectors * lanes)):
                continue
            vectors_held, _ = _vectors_of(strip, lanes, hardware)
            for height in _ROWS:
                # Sums, a row of one factor (of which a single row needs one vector at a time), a value of the other.
                needed = height * vectors_held + (vectors_held if height > 1 else 1) + spare
                fits = needed <= hardware.registers and height <= rows
                if not fits or (rows % height and (not depth or height > _TAIL_ROWS)):
                    continue
                tail_cost = TAIL_COST_L2 if near else TAIL_COST_MEMORY
                conversion = _CONVERSION_CYCLES * vectors_held if converts else 0.0
                cycles = sum(
                    count_i
                    * count_j
                    * (conversion + _cycles(size_i, _vectors_of(size_j, lanes, hardware)[1], hardware))
                    * (1.0 if (size_i, size_j) == (height, strip) else tail_cost)
                    for size_i, count_i in _parts(rows, height)
                    for size_j, count_j in _parts(columns, strip)
                )
                cycles *= TAIL_MARGIN if rows % height or columns % strip else 1.0
                is_packed = not columns % strip or (packs and columns + -columns % strip <= most_padded(columns))
                cycles *= 1.0 if is_packed or not far else _UNPACKED_COST
                if cycles < least:
                    best, least = (height, strip), cycles
    return best


def _tallest(rows: int, strip: int, hardware: HardwareParams, dtype: str) -> int:
    """The most rows of a tile whose strips are unpacked from bits, which takes as long as multiplying several rows."""
    vectors, _ = _vectors_of(strip, _lanes_for(strip, hardware, dtype), hardware)
    # Besides the sums, and a value of the other factor: a row of weights, their scales and their offsets.
    most = (hardware.registers - 1) // max(vectors, 1) - 3
    fitting = (height for height in _ROWS if height <= min(rows, most))
    return max((height for height in fitting if rows % height == 0 or height <= _TAIL_ROWS), default=1)


def _lanes_for(columns: int, hardware: HardwareParams, dtype: str) -> int:
    """The lanes of the shortest vector that a row of `columns` fills to more than half."""
    lanes = max(1, hardware.vector_unit_bytes // item_bytes(sum_type(dtype)))
    while columns <= lanes // 2:
        lanes //= 2
    return lanes


def _parts(extent: int, size: int) -> tuple[tuple[int, int], ...]:
    """The sizes of the parts of an extent, and the number of parts of each size."""
    count, remainder = divmod(extent, size)
    return ((size, count), (remainder, 1)) if remainder else ((size, count),)


def _vectors_of(strip: int, lanes: int, hardware: HardwareParams) -> tuple[int, float]:
    """The number of vectors of a strip, and their cost in whole vectors."""
    remainder = strip % lanes
    pieces, piece_cost = (min(remainder, 1), 1.0) if hardware.lane_masks else (remainder.bit_count(), _PIECE_COST)
    return strip // lanes + pieces, strip // lanes + pieces * piece_cost


def _cycles(height: int, vectors: float, hardware: HardwareParams) -> float:
    """Cycles of one step of the sums of a register tile."""
    # Rows come from the second-level cache, which takes twice as long.
    loads = (height + 2 * vectors) / _PER_CYCLE
    latency = _WIDE_LATENCY if hardware.lane_masks else _LATENCY
    return max(height * vectors / _PER_CYCLE, loads, latency) + _LOAD_COST * loads


@dataclass(frozen=True, slots=True)
class TileLoops:
    """Names of the spatial loops of a product, or of its reader, outside the register tile and inside it; and the panel
    that the rows inside some of the outer loops share.
    """

    outer: Sequence[str]
    inner: Sequence[str]
    panel: Panel | None = None


def split_for_tile(
    state: State, stage_id: int, outer_stage: int, row_axis: int, hardware: HardwareParams
) -> tuple[State, TileLoops]:
    """The loops of `outer_stage`, a product or its reader, split for the product's register tile."""
    op, axes = state.stages[stage_id].op, axes_of(state, outer_stage)
    assert isinstance(op, ComputeOp), "only what is computed has a reduction"
    last = len(axes) - 1
    rows = axes[row_axis].extent if row_axis >= 0 else 1
    # Rows of a depthwise convolution share parts of their windows; smaller tiles share less.
    is_depthwise = len(_read_along(state, stage_id)) > 1
    factor = strip_type(state, stage_id)
    terms_per_word = max(1, item_bytes(op.dtypes[0]) // item_bytes(factor))  # 4 of bytes in int32, 2 of halves
    depth = 0 if is_depthwise else prod(axis.extent for axis in op.reduce_axes) // terms_per_word
    if terms_per_word == _BYTES_PER_WORD and hardware.registers <= _FEW_REGISTERS:
        hardware = replace(hardware, vector_registers=hardware.registers - _PAIR_REGISTERS)
    columns, every = shared_columns(op, hardware), axes[last].extent
    packs = _is_packed(state, stage_id)
    panel = find_panel(state, stage_id, outer_stage) if hardware.converts(factor) else None
    dtype = factor if factor in HALVES else op.dtype
    tile = partial(register_tile, rows, columns, hardware, depth=depth, divides=columns < every, packs=packs)
    height, strip = tile("float32" if panel else dtype)
    if panel is not None and prod(axis.extent for axis in op.reduce_axes) * strip > PANEL_ELEMENTS:
        panel, (height, strip) = None, tile(dtype)
    is_interleaved = terms_per_word == _BYTES_PER_WORD and not packs and not is_depthwise
    if is_interleaved and columns == every:
        # Interleaving takes as long as several rows: a narrow strip leaves registers for more of them.
        strip = min(strip, _INTERLEAVED * _lanes_for(columns, hardware, dtype))
    if is_interleaved or any(map(_is_shift, walk(op.body))):
        height = _tallest(rows, strip, hardware, dtype)
    inner: list[str] = []
    for axis, size in ((last, strip), (row_axis, height)):
        if axis < 0:
            continue
        name, extent = axes[axis].name, axes[axis].extent
        if size == extent and (axis == last or extent > 1):
            inner.insert(0, name)
        elif 1 < size < extent:
            state = state.apply(Split(outer_stage, loop_number(state, outer_stage, name), extent, (size,)))
            inner.insert(0, f"{name}.1")
    if panel is not None:
        state, outer, panel = panel.order_loops(state, inner, hardware.num_cores)
        return state, TileLoops(outer, inner, panel)
    state, outer = _outer_order(state, stage_id, outer_stage, inner)
    return state, TileLoops(outer, inner)


def strip_type(state: State, stage_id: int) -> str:
    """The widest type that a product reads along its last axis."""
    dag, last = state.dag, axes_of(state, stage_id)[-1]
    types = (dag.ops[source].dtypes[0] for source, indices in dag.reads[stage_id] if indices and indices[-1] == last)
    return max(types, key=item_bytes)


def _is_packed(state: State, stage_id: int) -> bool:
    """Whether a product reads a constant that `pack_constants` packs along its last axis: once, by plain indices."""
    dag = state.dag
    last = axes_of(state, stage_id)[-1]
    reads = [(producer, indices) for producer, indices in dag.reads[stage_id] if indices and indices[-1] == last]
    return bool(reads) and all(
        producer in dag.layout_free
        and len(dag.readers[producer]) == 1
        and sum(producer == source for source, _ in dag.reads[stage_id]) == 1
        and all(isinstance(index, (Axis, Const)) for index in indices)
        for producer, indices in reads
    )


def shared_columns(op: ComputeOp, hardware: HardwareParams) -> int:
    """The number of neighbors along the last axis of a product that read the same broadcast factor: all, or the results
    of a group of a grouped convolution, unless these are much less than a vector. Strips must divide the latter: a
    strip over several groups chooses among them by lane.
    """
    last, lanes = op.axes[-1], hardware.vector_unit_bytes // item_bytes(sum_type(op.dtype))
    groups = [
        int(node.rhs.value)
        for node in walk(op.body)
        if isinstance(node, Binary)
        and node.op is BinaryOp.FLOORDIV
        and node.lhs == last
        and isinstance(node.rhs, Const)
    ]
    return min(
        (size for size in groups if _STRIP_RATIO * size >= lanes and last.extent % size == 0), default=last.extent
    )


def order_for_tile(state: State, stage_id: int, outer: Sequence[str], inner: Sequence[str]) -> State:
    """The loops of a stage in this order, the last in vectors, the loop around it unrolled. So is the loop around the
    tile if it shifts bits, as of packed weights: by literals.
    """
    state = as_tile(reorder_loops(state, stage_id, [*outer, *inner]), stage_id, len(inner))
    op = state.stages[stage_id].op
    assert isinstance(op, ComputeOp), "only what is computed has loops"
    shifts = {node for expr in walk(op.body) if _is_shift(expr) for node in walk(expr.rhs) if isinstance(node, Axis)}
    if outer and outer[-1] in {axis.name for axis in shifts}:
        state = state.apply(Annotate(stage_id, len(outer) - 1, Annotation.UNROLL))
    reads = _read_along(state, stage_id) if op.reduce_axes else []
    least = min(item_bytes(state.dag.ops[source].dtypes[0]) for source, _ in state.dag.reads[stage_id])
    if len(reads) > 1 and least < item_bytes("float32"):
        # Neighbors of a depthwise convolution share most elements of a row of the window, which are widened once.
        state = state.apply(Pragma(stage_id, 0, f"{UNROLL_PRAGMA}{_UNROLLED}"))
    return state


def _is_shift(expr: Expr) -> TypeGuard[Binary]:
    return isinstance(expr, Binary) and expr.op in SHIFTS


def as_tile(state: State, stage_id: int, loops: int) -> State:
    """The last loop of a stage in vectors, and the one around it unrolled if the tile has several loops."""
    last = len(state.stages[stage_id].iters) - 1
    if loops > 1:
        state = state.apply(Annotate(stage_id, last - 1, Annotation.UNROLL))
    return state.apply(Annotate(stage_id, last, Annotation.VECTORIZE))


def reorder_loops(state: State, stage_id: int, names: Sequence[str]) -> State:
    """The loops of a stage in the order of these names."""
    order = [loop_number(state, stage_id, name) for name in names]
    return state if order == sorted(order) else state.apply(Reorder(stage_id, tuple(order)))


def _outer_order(state: State, stage_id: int, outer_stage: int, inner: Sequence[str]) -> tuple[State, list[str]]:
    """The order of the spatial loops of `outer_stage` outside the register tile `inner` of a product, with a loop split
    where that saves traffic.

    Unchanged, every few rows read the whole factor that is read along the last axis. Where that factor fits no near
    cache, a block of rows that does stays there while it meets strip after strip of the factor:

        before: for i.0: for j.0: for k: …
        after:  for i.0.0: for j.0: for i.0.1: for k: …
    """
    own_axes, axes, reads = axes_of(state, stage_id), axes_of(state, outer_stage), state.dag.reads[stage_id]
    loops = state.stages[outer_stage].iters
    outer = [loop.name for loop in loops if loop.kind is IterKind.SPATIAL and loop.name not in inner]
    right, indices = next(read for read in reads if read[1] and read[1][-1] == own_axes[-1])
    used = {node for index in indices for node in walk(index)}
    shared = {outer_axis.name: axis for axis, outer_axis in zip(own_axes[:-1], axes, strict=False) if axis in used}
    # Loops that index both factors of a product stay outside: each iteration is a separate product.
    copies = prod(axis.extent for axis in shared.values())
    strips = [name for name in outer if axis_name(name) == axes[-1].name]
    rows = [name for name in outer if name not in strips and axis_name(name) not in shared]
    if bytes_of(state, right) <= copies * NEAR_BYTES or not strips or not rows:
        return state, outer
    first = [name for name in outer if axis_name(name) in shared]
    left_bytes = max((bytes_of(state, source) for source, _ in reads if source != right), default=0) / copies
    blocked, blocks, inside, count, share = state, list[str](), list(rows), 1, left_bytes
    while share > NEAR_BYTES and inside:
        name = inside.pop(0)
        extent = extent_of(blocked, outer_stage, name)
        fitting = [size for size in range(2, extent) if extent % size == 0 and share * size <= extent * NEAR_BYTES]
        if fitting:
            blocked = blocked.apply(Split(outer_stage, loop_number(blocked, outer_stage, name), extent, (fitting[-1],)))
            blocks.append(f"{name}.0")
            inside.insert(0, f"{name}.1")
            count *= extent // fitting[-1]
            break
        blocks.append(name)
        count *= extent
        share /= extent
    # Every block reads the whole factor. Without blocks every strip reads all rows, which may be less.
    if (
        count * bytes_of(state, right) / copies
        > prod(extent_of(state, outer_stage, name) for name in strips) * left_bytes
    ):
        return state, [*first, *strips, *rows]
    return blocked, [*first, *blocks, *strips, *inside]
