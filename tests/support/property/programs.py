"""Small computations and random legal schedules of them, reproducible from the seed."""

import numpy as np

from retune.compiler import te
from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.bounds import infer_stage_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.reads import consumers, is_strictly_inlineable
from retune.compiler.schedule.state import Annotation, Inlined, IterKind, Root, State
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FollowFusedSplit,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
)
from retune.compiler.te.tensor import Tensor
from tests.support.property.draws import Source


def matmul_bias_relu(n: int, m: int, k: int) -> ComputeDAG:
    a = te.placeholder((n, k), name="A")
    b = te.placeholder((k, m), name="B")
    bias = te.placeholder((m,), name="bias")
    r = te.reduce_axis(k, "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", {"layout_free_placeholders": (b,)})
    d = te.compute((n, m), lambda i, j: c[i, j] + bias[j], "D")
    return ComputeDAG([a, b, bias, te.compute((n, m), lambda i, j: te.maximum(d[i, j], 0.0), "E")])


def conv(height: int, channels: int, filters: int, kernel: int, stride: int, pad: int) -> ComputeDAG:
    x = te.placeholder((1, height, height, channels), name="x")
    w = te.placeholder((kernel, kernel, channels, filters), name="w")
    size = height + 2 * pad
    padded = te.compute(
        (1, size, size, channels),
        lambda n, h, v, c: te.if_then_else(
            te.logical_and(h >= pad, h < height + pad, v >= pad, v < height + pad), x[n, h - pad, v - pad, c], 0.0
        ),
        "pad",
    )
    out = (size - kernel) // stride + 1
    kh, kw, ci = te.reduce_axis(kernel, "kh"), te.reduce_axis(kernel, "kw"), te.reduce_axis(channels, "ci")
    y = te.compute(
        (1, out, out, filters),
        lambda n, h, v, f: te.sum(padded[n, h * stride + kh, v * stride + kw, ci] * w[kh, kw, ci, f], [kh, kw, ci]),
        "conv",
        {"layout_free_placeholders": (w,)},
    )
    return ComputeDAG([x, w, te.compute(y.shape, lambda n, h, v, f: te.maximum(y[n, h, v, f], 0.0), "relu")])


def depthwise(height: int, channels: int) -> ComputeDAG:
    x = te.placeholder((1, height, height, channels), name="x")
    w = te.placeholder((3, 3, channels), name="w")
    kh, kw = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")
    out = height - 2
    y = te.compute(
        (1, out, out, channels), lambda n, h, v, c: te.sum(x[n, h + kh, v + kw, c] * w[kh, kw, c], [kh, kw]), "dw"
    )
    return ComputeDAG(
        [x, w, te.compute(y.shape, lambda n, h, v, c: te.minimum(te.maximum(y[n, h, v, c], 0.0), 6.0), "relu6")]
    )


def max_pool(height: int, channels: int) -> ComputeDAG:
    x = te.placeholder((1, height, height, channels), name="x")
    kh, kw = te.reduce_axis(2, "kh"), te.reduce_axis(3, "kw")
    shape = (1, height - 1, height - 2, channels)
    return ComputeDAG([x, te.compute(shape, lambda n, h, v, c: te.max(x[n, h + kh, v + kw, c], [kh, kw]), "pool")])


def softmax(rows: int, columns: int) -> ComputeDAG:
    x = te.placeholder((rows, columns), name="x")
    k, q = te.reduce_axis(columns, "k"), te.reduce_axis(columns, "q")
    top = te.compute((rows,), lambda i: te.max(x[i, k], k), "top")
    grown = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - top[i]), "grown")
    total = te.compute((rows,), lambda i: te.sum(grown[i, q], q), "total")
    return ComputeDAG([x, te.compute((rows, columns), lambda i, j: grown[i, j] / total[i], "softmax")])


def reshape_transpose(n: int, m: int) -> ComputeDAG:
    x = te.placeholder((n, m), name="x")
    flat = te.compute((n * m,), lambda i: x[i // m, i % m] * 2.0, "flat")
    return ComputeDAG([x, te.compute((m, n), lambda j, i: flat[i * m + j] + 1.0, "turned")])


def random_program(rng: Source) -> ComputeDAG:
    """One of the computations above with small random, often awkward, extents."""

    def size(high: int) -> int:
        return int(rng.integers(1, high + 1))

    match rng.integers(6):
        case 0:
            return matmul_bias_relu(size(20), size(70), size(20))
        case 1:
            kernel = int(rng.integers(1, 4))
            return conv(kernel + size(8), size(6), size(40), kernel, int(rng.integers(1, 3)), int(rng.integers(0, 2)))
        case 2:
            return depthwise(2 + size(8), size(40))
        case 3:
            return max_pool(2 + size(8), size(80))
        case 4:
            return softmax(size(9), size(40))
    return reshape_transpose(size(12), size(20))


def random_steps(dag: ComputeDAG, rng: Source) -> tuple[Step, ...]:
    """A random legal schedule: splits with and without remainder, any order, caches, attachments, annotations."""
    state = State.initial(dag)
    for stage_id in reversed(range(len(state.stages))):
        if is_strictly_inlineable(dag, stage_id) and stage_id not in dag.output_ids and rng.random() < 0.5:
            state = state.apply(ComputeInline(stage_id))
    if rng.random() < 0.4:
        reducing = [i for i, stage in enumerate(state.stages) if stage.is_compute and stage.has_reduce_iter]
        if reducing:
            state = state.apply(CacheWrite(int(rng.choice(reducing)), "local"))
    state = _factor(state, rng)
    state = _cache_inputs(state, rng)
    for stage_id in reversed(range(len(state.stages))):
        if state.stages[stage_id].is_compute and isinstance(state.stages[stage_id].location, Root):
            state = _tile(state, stage_id, rng)
            state = _align(_attach(state, stage_id, rng), stage_id, rng)
    for stage_id, stage in enumerate(state.stages):
        if stage.is_compute and not isinstance(stage.location, Inlined):
            state = _annotate(state, stage_id, rng)
    return tuple(step for step in state.steps if isinstance(step, Step))


def _factor(state: State, rng: Source) -> State:
    """One reduction in two steps, now and then."""
    reducing = [i for i, stage in enumerate(state.stages) if stage.is_compute and stage.has_reduce_iter]
    if not reducing or rng.random() < 0.7:
        return state
    stage_id = int(rng.choice(reducing))
    stage = state.stages[stage_id]
    loops = [i for i, it in enumerate(stage.iters) if it.kind is IterKind.REDUCTION]
    loop, extent = int(rng.choice(loops)), stage.iters[loops[0]].extent
    if isinstance(extent, int) and rng.random() < 0.7:
        state = state.apply(Split(stage_id, loop, 0, (int(rng.integers(1, extent + 2)),)))
        loop += int(rng.integers(2))
    return state.apply(Rfactor(stage_id, loop, int(rng.integers(loops[0] + 1))))


def _cache_inputs(state: State, rng: Source) -> State:
    """Copies of what some stages read, more often than not computed inside the reader."""
    for stage_id in reversed(range(len(state.stages))):
        readers = state.dag.readers[stage_id]
        if readers and rng.random() < 0.25:
            some = tuple(sorted(int(i) for i in rng.choice(readers, int(rng.integers(1, len(readers) + 1)), False)))
            state = state.apply(CacheRead(stage_id, "local", some))
    return state


def _align(state: State, stage_id: int, rng: Source) -> State:
    if stage_id in state.dag.output_ids or rng.random() < 0.7:
        return state
    loops = [i for i, it in enumerate(state.stages[stage_id].iters) if it.kind is IterKind.SPATIAL]
    factor = int(rng.choice([8, 16, 17]))
    step = StorageAlign(stage_id, int(rng.choice(loops)), factor, int(rng.integers(factor))) if loops else None
    return state if step is None else state.apply(step)


def _tile(state: State, stage_id: int, rng: Source) -> State:
    for _ in range(int(rng.integers(0, 4))):
        iters = state.stages[stage_id].iters
        index = int(rng.integers(len(iters)))
        extent = iters[index].extent
        if isinstance(extent, int) and extent > 1:
            lengths = tuple(int(rng.integers(1, min(extent, 34) + 1)) for _ in range(int(rng.integers(1, 3))))
            state = state.apply(Split(stage_id, index, extent, lengths, bool(rng.random() < 0.8)))
    splits = [number for number, step in enumerate(state.steps) if isinstance(step, Split)]
    iters = state.stages[stage_id].iters
    if splits and iters and rng.random() < 0.3:
        sources = tuple(int(number) for number in rng.choice(splits, 2))
        state = state.apply(
            FollowFusedSplit(stage_id, int(rng.integers(len(iters))), sources, 0, bool(rng.integers(2)))
        )
    iters = state.stages[stage_id].iters
    if rng.random() < 0.6:
        state = state.apply(Reorder(stage_id, tuple(int(i) for i in rng.permutation(len(iters)))))
    return state


def _attach(state: State, stage_id: int, rng: Source) -> State:
    readers = consumers(state, stage_id)
    if stage_id in state.dag.output_ids or len(readers) != 1 or rng.random() < 0.3:
        return state
    place = ComputeAt(stage_id, readers[0], int(rng.integers(len(state.stages[readers[0]].iters))))
    after = state.apply(place)
    try:
        infer_stage_bounds(after)
    except ScheduleError:
        return state
    return after


def _annotate(state: State, stage_id: int, rng: Source) -> State:
    stage = state.stages[stage_id]
    spatial = [i for i, it in enumerate(stage.iters) if it.kind is IterKind.SPATIAL]
    if spatial and rng.random() < 0.7:
        state = state.apply(Annotate(stage_id, spatial[-1], Annotation.VECTORIZE))
    stage = state.stages[stage_id]
    if isinstance(stage.location, Root) and rng.random() < 0.5 and stage.iters:
        depth = 0
        while depth < len(stage.iters) and stage.iters[depth].kind is IterKind.SPATIAL and depth < 3:
            if stage.iters[depth].annotation is not Annotation.NONE:
                break
            depth += 1
            if state.attached_at(stage_id, depth - 1):
                break
        if depth > 1:
            state = state.apply(Fuse(stage_id, tuple(range(depth))))
        if depth > 0:
            state = state.apply(Annotate(stage_id, 0, Annotation.PARALLEL))
    return state.apply(Pragma(stage_id, 0, f"auto_unroll_max_step${rng.choice([0, 16, 64])}"))


def inputs_of(dag: ComputeDAG, rng: np.random.Generator) -> dict[Tensor, np.ndarray]:
    """Random inputs of a graph; integers are small, and not negative in a tensor that picks rows."""
    values: dict[Tensor, np.ndarray] = {}
    for tensor in dag.inputs:
        low = -9 if tensor.dtype.startswith("int") and tensor.name != "picks" else 0
        whole = not tensor.dtype.startswith("float")
        drawn = rng.integers(low, 10, tensor.shape) if whole else rng.uniform(-1, 1, tensor.shape)
        values[tensor] = drawn.astype(tensor.dtype)
    return values
