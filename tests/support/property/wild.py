"""Random schedules from steps of every kind, without regard to performance, reproducible from the seed.

A step that does not apply is dropped, so the schedule replays and its bounds can be inferred.
"""

from collections.abc import Callable

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.bounds import infer_stage_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.reads import consumers
from retune.compiler.schedule.state import Annotation, Attached, Inlined, IterKind, Root, State
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
)
from tests.support.property.draws import Source

MAX_UNROLLED = 4


def wild_steps(dag: ComputeDAG, rng: Source) -> tuple[Step, ...]:
    """Steps of every kind in a random order, then annotations."""
    state = State.initial(dag)
    moves: tuple[Callable[[State, int, Source], Step | None], ...] = (
        _split,
        _split,
        _split,
        _fuse,
        _reorder,
        _attach,
        _attach,
        _attach,
        _inline,
        _root,
        _cache,
        _follow,
        _follow_fused,
        _factor,
        _factor,
        _copy,
        _copy,
        _align,
    )
    for _ in range(int(rng.integers(0, 5 + 5 * len(dag.ops)))):
        stage_id = int(rng.integers(len(state.stages)))
        move = moves[int(rng.integers(len(moves)))]
        if state.stages[stage_id].is_compute or move is _copy:
            state = _tried(state, move(state, stage_id, rng))
    for stage_id in range(len(state.stages)):
        if state.stages[stage_id].is_compute and not isinstance(state.stages[stage_id].location, Inlined):
            state = _annotated(state, stage_id, rng)
    return tuple(step for step in state.steps if isinstance(step, Step))


def _tried(state: State, step: Step | None) -> State:
    if step is None:
        return state
    try:
        after = state.apply(step)
        infer_stage_bounds(after)
    except ScheduleError:
        return state
    return after


def _split(state: State, stage_id: int, rng: Source) -> Step | None:
    iters = state.stages[stage_id].iters
    if not iters:
        return None
    index = int(rng.integers(len(iters)))
    extent = iters[index].extent
    high = min(extent, 34) if isinstance(extent, int) else 12
    lengths = tuple(int(rng.integers(1, high + 1)) for _ in range(int(rng.integers(1, 4))))
    return Split(stage_id, index, extent if isinstance(extent, int) else 0, lengths, bool(rng.random() < 0.7))


def _follow(state: State, stage_id: int, rng: Source) -> Step | None:
    splits = [number for number, step in enumerate(state.steps) if isinstance(step, Split)]
    iters = state.stages[stage_id].iters
    if not splits or not iters:
        return None
    return FollowSplit(stage_id, int(rng.integers(len(iters))), int(rng.choice(splits)), int(rng.integers(1, 4)))


def _fuse(state: State, stage_id: int, rng: Source) -> Step | None:
    count = len(state.stages[stage_id].iters)
    if count < 2 or rng.random() < 0.1:
        return Fuse(stage_id, ())
    first = int(rng.integers(count - 1))
    return Fuse(stage_id, tuple(range(first, int(rng.integers(first + 2, min(count, first + 3) + 1)))))


def _reorder(state: State, stage_id: int, rng: Source) -> Step | None:
    return Reorder(stage_id, tuple(int(i) for i in rng.permutation(len(state.stages[stage_id].iters))))


def _attach(state: State, stage_id: int, rng: Source) -> Step | None:
    readers = consumers(state, stage_id)
    targets = [stage for stage in range(stage_id + 1, len(state.stages)) if stage in readers or rng.random() < 0.2]
    targets = [stage for stage in targets if state.stages[stage].iters]
    if not targets:
        return None
    target = int(rng.choice(targets))
    return ComputeAt(stage_id, target, int(rng.integers(len(state.stages[target].iters))))


def _inline(_state: State, stage_id: int, rng: Source) -> Step | None:
    return ComputeInline(stage_id) if rng.random() < 0.5 else None


def _root(state: State, _stage_id: int, rng: Source) -> Step | None:
    moved = [i for i, stage in enumerate(state.stages) if isinstance(stage.location, Attached | Inlined)]
    return ComputeRoot(int(rng.choice(moved))) if moved and rng.random() < 0.5 else None


def _cache(_state: State, stage_id: int, rng: Source) -> Step | None:
    return CacheWrite(stage_id, "local") if rng.random() < 0.5 else None


def _follow_fused(state: State, stage_id: int, rng: Source) -> Step | None:
    splits = [number for number, step in enumerate(state.steps) if isinstance(step, Split)]
    iters = state.stages[stage_id].iters
    if not splits or not iters:
        return None
    sources = tuple(int(rng.choice(splits)) for _ in range(int(rng.integers(1, 3))))
    loop, level = int(rng.integers(len(iters))), int(rng.integers(2))
    return FollowFusedSplit(stage_id, loop, sources, level, bool(rng.integers(2)))


def _factor(state: State, stage_id: int, rng: Source) -> Step | None:
    stage = state.stages[stage_id]
    reducing = [index for index, loop in enumerate(stage.iters) if loop.kind is IterKind.REDUCTION]
    rank = sum(loop.kind is IterKind.SPATIAL for loop in stage.iters)
    return Rfactor(stage_id, int(rng.choice(reducing)), int(rng.integers(rank + 1))) if reducing else None


def _copy(state: State, stage_id: int, rng: Source) -> Step | None:
    readers = state.dag.readers[stage_id]
    if not readers or len(state.stages) > 12:
        return None
    some = tuple(sorted(int(i) for i in rng.choice(readers, int(rng.integers(1, len(readers) + 1)), replace=False)))
    return CacheRead(stage_id, str(rng.choice(["shared", "local"])), some)


def _align(state: State, stage_id: int, rng: Source) -> Step | None:
    iters = state.stages[stage_id].iters
    factor = int(rng.choice([1, 8, 16, 17]))
    return StorageAlign(stage_id, int(rng.integers(len(iters))), factor, int(rng.integers(factor))) if iters else None


def _annotated(state: State, stage_id: int, rng: Source) -> State:
    bounds = infer_stage_bounds(state)
    stage = state.stages[stage_id]
    unordered = (IterKind.SPATIAL, IterKind.SPECIAL)
    spatial = [index for index, loop in enumerate(stage.iters) if loop.kind in unordered]
    if spatial and rng.random() < 0.6:
        state = _tried(state, Annotate(stage_id, int(rng.choice(spatial[-2:])), Annotation.VECTORIZE))
    for index, extent in enumerate(bounds[stage_id].iter_extents):
        if int(extent) <= MAX_UNROLLED and rng.random() < 0.15:
            state = _tried(state, Annotate(stage_id, index, Annotation.UNROLL))
    if isinstance(stage.location, Root) and rng.random() < 0.5 and spatial[:1] == [0]:
        depth = 1
        while depth < len(stage.iters) and rng.random() < 0.5:
            depth += 1
        if depth > 1:
            state = _tried(state, Fuse(stage_id, tuple(range(depth))))
        state = _tried(state, Annotate(stage_id, 0, Annotation.PARALLEL))
    return state.apply(Pragma(stage_id, 0, f"auto_unroll_max_step${rng.choice([0, 16, 64, 512])}"))
