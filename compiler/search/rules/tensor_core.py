"""Sketch rule: compute a matrix product on tensor cores.

It needs an NVIDIA GPU from sm_80 on. The resulting loops are already bound to blocks, warps and lanes; some of their
lengths stay open.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.target import Target
from retune.compiler.ir.tensor_core import COLUMNS, INSTRUCTIONS, MATRIX, ROW_BYTES, ROWS, WARP
from retune.compiler.schedule.contraction import (
    Contraction,
    contraction_of,
    depth_is_inner,
    instruction_for,
    row_padding,
)
from retune.compiler.schedule.state import Annotation, IterKind, Root, Stage, State
from retune.compiler.schedule.steps import (
    Annotate,
    AsMatmul,
    ComputeAt,
    ComputeInline,
    FollowFusedSplit,
    Fuse,
    Pipeline,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
)
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import fusible_consumer, has_cache_write
from retune.compiler.search.rules.tiling import literal_extent
from retune.compiler.te.tensor import ComputeOp

_OLDEST = 80
"""The first architecture with bfloat16 and tf32 products (m16n8k16, m16n8k8) and `cp.async`: PTX ISA."""
_TILES = (1, 2, 4, 8)
_COLUMN_TILES = (1, 2, 4, 8, 16, 32)
"""Fragments in a warp's part of the result; a warpgroup instruction has at most 32 columns of them."""
_WARPS = (1, 2, 4, 8)
"""Warps of a block, along the rows or the columns."""
_STEPS = (1, 2, 4)
"""Multiples of the instruction's depth that are fetched together."""
DEPTHS = (1, 2, 3, 4)
"""Iterations whose copies are in flight or available together."""
_USUAL_TILE = 64
"""Least rows, and columns, of the result per block for its warps to share fetched tiles."""
_FEWEST_SUMS = 256
"""Least terms of a part of a sum: enough that its first copies do not dominate its time."""
_GROUPS = (1, 2, 4, 8, 16)
"""Rows of blocks that are traversed together, column by column."""

_BLOCK, _WARP_LOOP, _LANE, _UNROLL, _TENSOR = (
    int(kind)
    for kind in (Annotation.BLOCK_X, Annotation.THREAD_Y, Annotation.THREAD_X, Annotation.UNROLL, Annotation.TENSORIZE)
)


def copies_asynchronously(target: Target) -> bool:
    """Whether a GPU has the tensor cores that we use, and asynchronous copies; False for an unnamed GPU."""
    match = re.fullmatch(r"sm_(\d+)[af]?", target.arch)
    return match is not None and int(match[1]) >= _OLDEST


def kind_of(context: SketchContext, state: State, stage: int) -> str | None:
    """The kind of instruction for a stage in its naive loops; float32 only if the target allows tf32."""
    target = context.target
    is_off = "TensorCoreTiling" in context.options.without_rules
    if is_off or target is None or not copies_asynchronously(target):
        return None
    described = state.stages[stage]
    plain = described.is_compute and isinstance(described.location, Root) and not described.is_tiled
    if not plain or described.family is not None or has_cache_write(state, stage):
        return None
    return instruction_for(state.dag, stage, target.allow_tf32)


@dataclass(frozen=True, slots=True)
class TensorCoreTiling:
    """Rewrite a matrix product as a product of gathered tiles, and tile it for blocks, warps and fragments.

    before: for i: for j: for k: c += a * b;  for i: for j: r = f(c)
    after:  blockIdx i j: warp i j: (for k: (copy a tile; copy b tile); for k i j: mma);  lane i j: for i j: r = f(c)
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """APPLY for such a product that fills an instruction; the other rules may tile it for plain code."""
        return Verdict.SKIP if kind_of(context, state, stage) is None else Verdict.APPLY

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:
        """The tiled state. If the result has too few tiles to keep the GPU busy, also states in which parts of the sum
        are further matrices of a batch, added up by their reader.
        """
        contraction = contraction_of(state.dag, stage)
        assert contraction is not None, "judge() has looked"
        split = (in_parts(state, stage, parts) for parts in _parts(context, state, stage, contraction))
        return tuple((_tile(context, variant, stage), stage - 1) for variant in (state, *split))


def _parts(context: SketchContext, state: State, stage: int, contraction: Contraction) -> tuple[int, ...]:
    """Numbers of parts for a sum: the largest two powers of two that divide its longest loop, leave each part a few
    iterations, and make at most twice as many tiles as there are multiprocessors. None for sums that are rounded to
    halves.
    """
    op = state.stages[stage].op
    batch, rows, columns, sums = (
        prod(axis.extent for axis in axes)
        for axes in (contraction.batch, contraction.rows, contraction.columns, contraction.sums)
    )
    tiles = batch * -(-rows // _USUAL_TILE) * -(-columns // _USUAL_TILE)
    most = min(2 * context.hardware.gpu.multiprocessors // tiles, sums // _FEWEST_SUMS)
    longest = max(axis.extent for axis in contraction.sums)
    fitting = tuple(parts for parts in (2, 4, 8, 16, 32) if parts <= most and longest % parts == 0)
    # A second kernel adds the parts: halves would be rounded once more in between.
    return fitting[-2:] if op.dtype == "float32" else ()


def in_parts(state: State, stage: int, parts: int) -> State:
    """Split the longest loop of a sum into parts with separate sums. The stage that adds the parts is computed inside
    the loops of its elementwise reader.
    """
    iters = state.stages[stage].iters
    sums = [number for number, iterator in enumerate(iters) if iterator.kind is IterKind.REDUCTION]
    loop = max(sums, key=lambda number: literal_extent(iters[number]))
    extent = literal_extent(iters[loop])
    state = state.apply(Split(stage, loop, extent, (extent // parts,))).apply(Rfactor(stage, loop, 0))
    consumer = fusible_consumer(state, stage + 1)
    if consumer is None:
        return state
    return state.apply(ComputeAt(stage + 1, consumer, len(state.stages[consumer].iters) - 1))


def _tile(context: SketchContext, state: State, stage: int) -> State:
    """The product on tensor cores."""
    kind = kind_of(context, state, stage)
    contraction = contraction_of(state.dag, stage)
    op = state.stages[stage].op
    assert kind is not None, "a part of a product is one"
    assert contraction is not None
    assert isinstance(op, ComputeOp)
    consumer = fusible_consumer(state, stage)
    groups = tuple(
        tuple(op.axes.index(axis) for axis in axes)
        for axes in (contraction.batch, contraction.rows, contraction.columns)
    )
    # Rasterization matters only if factors leave the shared cache between their uses.
    beyond_cache = _is_beyond_cache(context, contraction)
    state = state.apply(AsMatmul(stage, kind))
    root = stage + 3
    if consumer is not None:
        state = state.apply(ComputeInline(root))
        root = consumer + 3
    state, warps = _tiled_result(state, root, groups, beyond_cache)
    state = _tiled_product(state, stage + 2, root, INSTRUCTIONS[kind].depth)
    for operand in (stage, stage + 1):
        state = _fetch(state, operand, stage + 2, warps)
    return state


def _is_beyond_cache(context: SketchContext, contraction: Contraction) -> bool:
    """Whether the factors exceed the cache that all blocks share, so that their order matters."""
    rows, columns, sums = (
        prod(axis.extent for axis in axes) for axes in (contraction.rows, contraction.columns, contraction.sums)
    )
    return (rows + columns) * sums * item_bytes(contraction.dtype) > context.hardware.gpu.cache


def _tiled_result(
    state: State, root: int, groups: Sequence[Sequence[int]], beyond_cache: bool
) -> tuple[State, tuple[int, int]]:
    """Tile the stage that writes the result over blocks, warps and lanes; each lane has two neighbors in two rows of
    every fragment. Also returns the numbers of the steps with the warps along rows and columns. With `beyond_cache`,
    blocks traverse some rows at a time, so that concurrent blocks share rows and columns.
    """
    order = tuple(number for group in groups for number in group)
    if order != tuple(range(len(order))):
        state = state.apply(Reorder(root, order))
    batch = len(groups[0])
    for position, group in enumerate(groups[1:]):
        if len(group) > 1:
            first = batch + position
            state = state.apply(Fuse(root, tuple(range(first, first + len(group)))))
    warps = []
    # Rows of a fragment are split by (2, 8), columns by (4, 2): lane 4 r + c holds two columns of each row r.
    for position, (tile, inner) in enumerate(((2 * ROWS, (2, MATRIX)), (4 * COLUMNS, (4, 2)))):
        loop = batch + 5 * position
        # Single lengths, and the depth of the pipeline, are placeholders until the search chooses, see `choices_of`.
        state = state.apply(Split(root, loop, 0, (tile,)))
        warps.append(len(state.steps))
        state = state.apply(Split(root, loop, 0, (2,)))
        state = state.apply(Split(root, loop + 2, 0, inner))
    blocks = 2
    if beyond_cache:
        state = state.apply(Split(root, batch, 0, (1,)))
        blocks = 3
    # Loops of rows and of columns: block, warp, fragment, inside the fragment.
    rows, columns = ([batch + 5 * position + blocks - 2 + number for number in range(5)] for position in range(2))
    outer = (batch, columns[0], batch + 1)[:blocks]
    reordered = (
        *range(batch),
        *outer,
        rows[1],
        columns[1],
        rows[4],
        columns[3],
        rows[2],
        rows[3],
        columns[2],
        columns[4],
    )
    state = state.apply(Reorder(root, reordered))
    state = state.apply(Fuse(root, tuple(range(batch + blocks)))).apply(Annotate(root, 0, _BLOCK))
    for number, annotation in ((1, _WARP_LOOP), (2, _LANE)):
        state = state.apply(Fuse(root, (number, number + 1))).apply(Annotate(root, number, annotation))
    for number in range(3, 7):
        state = state.apply(Annotate(root, number, _UNROLL))
    return state, (warps[0], warps[1])


def _tiled_product(state: State, product: int, root: int, depth: int) -> State:
    """Tile the product of a warp, fragment by fragment, inside the loop over warps."""
    for number, length in ((1, ROWS), (3, COLUMNS), (5, depth), (5, 2)):
        state = state.apply(Split(product, number, 0, (length,)))
    state = state.apply(Reorder(product, (0, 5, 6, 1, 3, 2, 4, 7)))
    state = state.apply(Annotate(product, 2, _UNROLL))
    for number in (5, 6, 7):
        state = state.apply(Annotate(product, number, _TENSOR))
    return state.apply(ComputeAt(product, root, 1)).apply(Pipeline(product, 1, 2))


def _fetch(state: State, operand: int, product: int, warps: tuple[int, int]) -> State:
    """Copy a factor's tile with all threads of the block in every iteration over the sum."""
    op = state.stages[operand].op
    assert isinstance(op, ComputeOp)
    factor, offset = row_padding(op.dtype, inner=depth_is_inner(op))
    # Padded rows start in different banks, so `ldmatrix` reads eight of them without conflicts.
    state = state.apply(StorageAlign(operand, 1, factor, offset))
    state = state.apply(ComputeAt(operand, product, 1))
    state = state.apply(Fuse(operand, (0, 1, 2)))
    steps: tuple[Step, ...] = (
        Split(operand, 0, 0, (ROW_BYTES // item_bytes(op.dtype),)),
        Annotate(operand, 1, int(Annotation.VECTORIZE)),
        Split(operand, 0, 0, (WARP,)),
        Annotate(operand, 1, _LANE),
        FollowFusedSplit(operand, 0, warps, 0, True),
        Annotate(operand, 1, _WARP_LOOP),
    )
    for step in steps:
        state = state.apply(step)
    return state


def unrolls(stage: Stage) -> bool:
    """Whether an unroll limit has an effect on a stage: it reduces, and not on tensor cores."""
    return stage.has_reduce_iter and all(loop.annotation is not Annotation.TENSORIZE for loop in stage.iters)


def choices_of(steps: Sequence[Step]) -> dict[int, tuple[int, ...]]:
    """Choices of the lengths and depths that this rule writes, by step number, without fixed lengths."""
    choices_by_step: dict[int, tuple[int, ...]] = {}
    for first, step in enumerate(steps):
        if isinstance(step, AsMatmul):
            behind = range(first, len(steps))
            pipeline = next(n for n in behind if isinstance(steps[n], Pipeline))
            # Before it are the splits of the result and then of the product, after it those of the factors.
            splits = [n for n in behind if isinstance(part := steps[n], Split) and len(part.lengths) == 1]
            product_splits = [n for n in splits if n < pipeline and steps[n].stage == step.stage + 2]
            result = [n for n in splits if n < pipeline and n not in product_splits]
            tiles, product, fetch = _choices(INSTRUCTIONS[step.kind].dtype)
            factors = [n for n in splits if n > pipeline]
            for numbers, choices in ((result, tiles), (product_splits, product), (factors, fetch)):
                choices_by_step.update(zip(numbers, choices, strict=False))
            choices_by_step[pipeline] = DEPTHS
    return choices_by_step


def _choices(dtype: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Choices of every split with one length, in order: of the result, of the product, and of both factors."""
    rows, columns = (tuple(ROWS * tile for tile in _TILES), tuple(COLUMNS * tile for tile in _COLUMN_TILES))
    fetch = tuple(width for width in (1, 2, 4, 8) if width * item_bytes(dtype) <= ROW_BYTES), ()
    return (rows, _WARPS, columns, _WARPS, _GROUPS), ((), (), (), _STEPS), (*fetch, *fetch)
