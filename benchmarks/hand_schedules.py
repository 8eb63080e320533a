"""Hand-written schedules for families of operators, parameterized by tile sizes and valid for all shapes.

They use the schedule functions only. A tiled reduction keeps its results in registers: the innermost loops of the
output are a tile of at most 28 vectors, and the reduction of that tile is computed inside them, in a local buffer that
the code generator keeps in registers.
"""

from collections.abc import Callable, Mapping

from retune.compiler.schedule.default.stages import axes_of
from retune.compiler.schedule.primitives import (
    LoopRef,
    StageRef,
    cache_write,
    compute_at,
    compute_inline,
    fuse,
    parallel,
    pragma,
    reorder,
    split,
    stage_number,
    unroll,
    vectorize,
)
from retune.compiler.schedule.state import State

_LANES = 16
"""Channels of a depthwise tile: one vector of the widest registers."""

Schedule = Callable[[State], State]
Lengths = Mapping[str, tuple[int, ...]]
"""Inner lengths of the loops that are split, by name."""


def tiled(state: State, stage: StageRef, lengths: Lengths, order: str) -> State:
    """Split loops and put all of them in order, outermost first. The parts of `i` are `i.0`, `i.1`, …

    Loops that `order` leaves out stay outermost; a name that the stage has not is passed over, so that one order serves
    convolutions of any window.
    """
    number = stage_number(state, stage)
    for loop, inner in lengths.items():
        state, _ = split(state, number, loop, inner)
    names = [iterator.name for iterator in state.stages[number].iters]
    last = [name for name in order.split() if name in names]
    return reorder(state, number, [*(name for name in names if name not in last), *last])


def parallel_outer(state: State, stage: StageRef, count: int) -> State:
    """Fuse the outermost `count` loops and run them on all threads."""
    number = stage_number(state, stage)
    loops: list[LoopRef] = list(range(count))
    state, fused = fuse(state, number, loops)
    return parallel(state, number, fused)[0]


def tiled_reduction(
    state: State,
    stage: StageRef,
    *,
    tiles: Lengths,
    order: str,
    at: str,
    inner: str,
    depth: Lengths | None = None,
    threads_over: int = 1,
    unroll_limit: int = 0,
    into: StageRef | None = None,
) -> State:
    """Compute `stage` tile by tile inside stage `into`, the last one of the graph if not given.

    `tiles` and `order` are the loops of that stage, the innermost a vector loop; the reduction stands in its loop `at`.
    `depth` and `inner` are the splits and the order of the reduction's own loops. The `threads_over` outermost loops
    run in parallel. Stages in between are inlined; a reduction into itself is buffered.
    """
    number = stage_number(state, stage)
    last = len(state.stages) - 1 if into is None else stage_number(state, into)
    renamed: dict[str, str] = {}
    if number == last:
        renamed = {axis.name: f"{axis.name}_c" for axis in axes_of(state, number)}
        state, _ = cache_write(state, number)
        last += 1
    for between in range(last - 1, number, -1):
        if state.stages[between].is_compute:
            state = compute_inline(state, between)
    state = tiled(state, last, tiles, order)
    state = compute_at(state, number, last, at)
    state = tiled(state, number, depth or {}, _renamed(inner, renamed))
    for target in (number, last):
        state, _ = vectorize(state, target, len(state.stages[target].iters) - 1)
    if unroll_limit:
        state = pragma(state, number, 0, f"auto_unroll_max_step${unroll_limit}")
    return parallel_outer(state, last, threads_over) if threads_over else state


def _renamed(order: str, names: Mapping[str, str]) -> str:
    """The loops of an order as they are called in a cached stage: `c.0` as `c_c.0`, those of the reduction as ever."""
    parts = (name.partition(".") for name in order.split())
    return " ".join(f"{names.get(base, base)}{dot}{level}" for base, dot, level in parts)


def product(rows: int, columns: int, *, batched: bool = False) -> Schedule:
    """A matrix product: all rows go past a panel of `columns` columns of the second matrix before the next."""

    def schedule(state: State) -> State:
        return tiled_reduction(
            state,
            "product",
            tiles={"i": (rows,), "j": (columns,)},
            order="n j.0 i.0 i.1 j.1",
            at="i.0",
            inner="k i j",
            threads_over=2 if batched else 1,
        )

    return schedule


def padded_first(state: State, threads_over: int = 2) -> State:
    """The padding of a convolution as its own copy, on all threads; nothing where there is none."""
    pads = [number for number, stage in enumerate(state.stages) if stage.op.name == "conv_pad"]
    for number in pads:
        state, _ = vectorize(state, number, len(state.stages[number].iters) - 1)
        state = parallel_outer(state, number, threads_over)
    return state


def convolution(width: int, channels: int, *, inner: str = "ry rx rc x c", unroll_limit: int = 0) -> Schedule:
    """A tile of `width` neighbors and `channels` output channels; all the image goes past one block of weights."""

    def schedule(state: State) -> State:
        return tiled_reduction(
            padded_first(state),
            "conv",
            tiles={"x": (width,), "c": (channels,)},
            order="n c.0 z y x.0 x.1 c.1",
            at="x.0",
            inner=inner,
            threads_over=3,
            unroll_limit=unroll_limit,
        )

    return schedule


def small_image_convolution(width: int, channels: int, depth: int) -> Schedule:
    """For few pixels and many channels, where weights are the larger part: all the image goes past the weights of one
    row of taps and `depth` input channels, which are in the nearest cache by then; sums wait in a local buffer.
    """

    def schedule(state: State) -> State:
        return tiled_reduction(
            padded_first(state),
            "conv",
            tiles={"x": (width,), "c": (channels,)},
            order="n c.0 x.0 y x.1 c.1",
            at="x.0",
            inner="rc.0 ry y rx rc.1 x c",
            depth={"rc": (depth,)},
            threads_over=3,
        )

    return schedule


def rows(block: int, shared: int = 0) -> Schedule:
    """Every stage inside the loop over blocks of rows of the last one, so that a block stays in the nearest cache.

    With `shared` the last stage takes so many columns of all rows of a block at a time, for which it reads what the
    rows share only once.
    """

    def schedule(state: State) -> State:
        last = len(state.stages) - 1
        state, (outer, inner) = split(state, last, 0, (block,))
        if shared:
            state, (piece, column) = split(state, last, 2, (shared,))
            state = reorder(state, last, [outer, piece, inner, column])
            state, _ = unroll(state, last, inner)
        for number in range(last - 1, -1, -1):
            if state.stages[number].is_compute:
                state = compute_at(state, number, last, outer)
        for number, stage in enumerate(state.stages):
            wide = len(stage.iters) - (number == last) > 1
            if stage.is_compute and not stage.has_reduce_iter and wide:
                state, _ = vectorize(state, number, len(stage.iters) - 1)
        return parallel_outer(state, last, 1)

    return schedule


def transposed_convolution(width: int, channels: int) -> Schedule:
    """Every phase like a convolution without stride, then the phases interleaved."""

    def schedule(state: State) -> State:
        state = padded_first(state)
        state = tiled_reduction(
            state,
            "conv_phases",
            tiles={"x": (width,), "c": (channels,)},
            order="n a b c.0 y x.0 x.1 c.1",
            at="x.0",
            inner="ry rx rc x c",
            threads_over=4,
            into="conv_phases",
        )
        last = len(state.stages) - 1
        state, _ = vectorize(state, last, len(state.stages[last].iters) - 1)
        return parallel_outer(state, last, 2)

    return schedule


def depthwise(height: int, width: int, *, channels_first: bool = False) -> Schedule:
    """A tile of neighboring rows and columns, whose windows overlap, of one vector of channels. Tiles go down a stripe
    of the image, all channels of one or, with `channels_first`, one vector of channels after the other, so that the
    rows they share are still in the nearest cache. Padding is chosen where the input is read: a copy costs as much as
    the convolution.
    """
    order, at = ("c.0 x.0 y.0", "y.0") if channels_first else ("x.0 y.0 c.0", "c.0")

    def schedule(state: State) -> State:
        state = compute_inline(state, "conv_pad")
        return tiled_reduction(
            state,
            "conv",
            tiles={"y": (height,), "x": (width,), "c": (_LANES,)},
            order=f"n {order} y.1 x.1 c.1",
            at=at,
            inner="ry rx y x c",
            threads_over=3,
            unroll_limit=9 * height * width,
        )

    return schedule
