"""Annotates a sketch: adds the steps that every program of it shares, whatever its tile sizes.

For CPUs these unroll the loops that an operation names; for GPUs they also bind loops to blocks, virtual threads and
threads, and say how threads fetch shared tiles together. Extents decide nothing here that could differ between two
programs of a sketch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.expr import Const, Select
from retune.compiler.ir.tensor_core import COPY_BYTES
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.inlining import inline_body
from retune.compiler.schedule.reads import needs_multi_level_tiling
from retune.compiler.schedule.state import SHARED_SUFFIX, Annotation, Attached, IterKind, Root, State, replay
from retune.compiler.schedule.steps import Annotate, FollowFusedSplit, Fuse, Pipeline, Rfactor, Split, Step, steps_of
from retune.compiler.search.factorize import prime_factors
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.rules.base import CPU_SEARCH, GPU_SEARCH
from retune.compiler.search.rules.facts import (
    UNROLL_INNER,
    has_cross_thread_reduction,
    named_loops,
    original_names,
    outer_space_loops,
    spatial_split_steps,
)
from retune.compiler.search.rules.tensor_core import copies_asynchronously
from retune.compiler.te.tensor import TensorRead

_BLOCK, _VTHREAD, _THREAD = (int(kind) for kind in (Annotation.BLOCK_X, Annotation.VTHREAD, Annotation.THREAD_X))


def template_state(dag: ComputeDAG, steps: Sequence[Step]) -> State:
    """The state of a sketch with the factor of every factored reduction filled in; tile sizes stay unknown."""
    filled = list(steps)
    for number in range(len(filled) - 1):
        step = filled[number]
        if isinstance(step, Split) and None in step.lengths and isinstance(filled[number + 1], Rfactor):
            factors = prime_factors(step.extent)
            # Any factor will do: the structure after a factored reduction is the same for all but length 1.
            filled[number] = replace(step, lengths=(factors[0][0] if factors else 1,))
    return replay(dag, filled)


def annotated_steps(sketch: State, dag: ComputeDAG, context: SketchContext) -> tuple[Step, ...]:
    """The steps of `sketch`, then the steps that every program of it shares."""
    steps = steps_of(sketch)
    state = template_state(dag, steps)
    for annotate in _ANNOTATIONS[context.kind.name]:
        state = annotate(state, context)
    return (*steps, *steps_of(state)[len(steps) :])


def _unroll(state: State, context: SketchContext) -> State:  # noqa: ARG001 the same on every machine
    """Unroll the loops that an operation lists, innermost first, as long as each is of another axis."""
    for stage, described in enumerate(state.stages):
        names = named_loops(state, stage, UNROLL_INNER)
        if not names or not described.iters:
            continue
        seen: set[str] = set()
        for number in range(len(described.iters) - 1, -1, -1):
            iterator = described.iters[number]
            origin = original_names(iterator.name)
            if origin & seen:
                break
            seen |= origin
            if len(origin) == 1 and origin <= names and iterator.annotation is Annotation.NONE:
                state = state.apply(Annotate(stage, number, int(Annotation.UNROLL)))
    return state


def _bind_stages(state: State, context: SketchContext) -> State:
    """Bind the loops of every stage of the template state `state` to threads, last stage first."""
    roots = _tiled_roots(state)
    for stage in range(len(state.stages) - 1, -1, -1):
        described = state.stages[stage]
        if not described.is_compute:
            continue
        if isinstance(described.location, Root) and has_cross_thread_reduction(state, stage):
            state = _fuse_and_annotate(state, stage, outer_space_loops(state, stage), _BLOCK)
        elif any(iterator.annotation is Annotation.THREAD_X for iterator in described.iters):
            continue
        elif isinstance(described.location, Root):
            bind = _bind_tiles if stage in roots else _bind_untiled
            state = bind(state, stage, context)
        elif isinstance(described.location, Attached) and described.op.name.endswith(SHARED_SUFFIX):
            state = _distribute_fetch(state, stage, described.location.stage)
    return state


def _tiled_roots(state: State) -> set[int]:
    """The stages in whose loops a tiled stage is computed."""
    return {
        stage.location.stage
        for number, stage in enumerate(state.stages)
        if isinstance(stage.location, Attached) and needs_multi_level_tiling(state.dag, number)
    }


def _fuse_and_annotate(state: State, stage: int, loops: Sequence[int], annotation: int) -> State:
    """Fuse neighboring loops and annotate the result. Without loops, a loop of one iteration around the stage."""
    if len(loops) != 1:
        state = state.apply(Fuse(stage, tuple(loops)))
    return state.apply(Annotate(stage, loops[0] if loops else 0, annotation))


def _bind_untiled(state: State, stage: int, context: SketchContext) -> State:
    """Spread the outer loops of an untiled stage over blocks of a warp's threads."""
    loops = outer_space_loops(state, stage)
    iters = state.stages[stage].iters
    origins = {name for number in loops for name in original_names(iters[number].name)}
    extents = {axis.name: axis.extent for axis in getattr(state.stages[stage].op, "axes", ())}
    if len(loops) != 1:
        state = state.apply(Fuse(stage, loops))
    first = loops[0] if loops else 0
    warp = context.hardware.warp_size
    longest = prod(extents.get(name, 1) for name in origins)
    # One block suffices; splitting would only add a loop of one iteration.
    if longest <= warp:
        return state.apply(Annotate(stage, first, _THREAD))
    extent = state.stages[stage].iters[first].extent
    state = state.apply(Split(stage, first, extent if isinstance(extent, int) else 0, (warp,)))
    return state.apply(Annotate(stage, first, _BLOCK)).apply(Annotate(stage, first + 1, _THREAD))


def _bind_tiles(state: State, stage: int, context: SketchContext) -> State:  # noqa: ARG001
    """Bind the three outer tile levels of the stage around a tiled stage to blocks, virtual threads and threads."""
    for level, annotation in enumerate((_BLOCK, _VTHREAD, _THREAD)):
        iters = state.stages[stage].iters
        loops = []
        for number in range(level, len(iters)):
            if not iters[number].name.endswith(f".{level}") or iters[number].kind is IterKind.REDUCTION:
                break
            loops.append(number)
        state = _fuse_and_annotate(state, stage, loops, annotation)
    return state


def _pipeline(state: State, context: SketchContext) -> State:
    """Pipeline the loops that fetch shared caches, on GPUs with asynchronous copies. The search chooses the depth."""
    if context.target is None or not copies_asynchronously(context.target):
        return state
    loops = {
        (stage.location.stage, stage.location.iter)
        for number, stage in enumerate(state.stages)
        if isinstance(stage.location, Attached) and stage.op.name.endswith(SHARED_SUFFIX) and _is_copy(state, number)
    }
    for reader, loop in sorted(loops):
        described = state.stages[reader]
        whole = described.pipeline is None and isinstance(described.location, Attached)
        if whole and described.iters[loop].kind is IterKind.REDUCTION:
            # Double buffering to begin with; the depth is a column of the genome.
            state = state.apply(Pipeline(reader, loop, 2))
    return state


def _is_copy(state: State, stage: int) -> bool:
    """Whether a stage copies elements of another stage, or zeros, at least as long as an asynchronous copy."""
    body = inline_body(state, stage)
    while isinstance(body, Select) and isinstance(body.otherwise, Const) and body.otherwise.value == 0:
        body = body.then
    same = isinstance(body, TensorRead) and body.dtype == state.stages[stage].op.dtype
    return same and item_bytes(body.dtype) in COPY_BYTES


def _distribute_fetch(state: State, stage: int, reader: int) -> State:
    """Let all threads of the block fetch a shared cache, an element each at a time; the search may widen that."""
    sources = spatial_split_steps(state, reader)
    state = state.apply(Fuse(stage, tuple(range(len(state.stages[stage].iters)))))
    state = state.apply(Split(stage, 0, 0, (1,)))
    state = state.apply(Annotate(stage, 1, int(Annotation.VECTORIZE)))
    # Entry 1 of a split's lengths is its part `.2`, the threads: all of the block copy (Ansor's cooperative fetch).
    state = state.apply(FollowFusedSplit(stage, 0, sources, 1, True))
    return state.apply(Annotate(stage, 1, _THREAD))


_ANNOTATIONS: dict[str, tuple[Callable[[State, SketchContext], State], ...]] = {
    CPU_SEARCH.name: (_unroll,),
    GPU_SEARCH.name: (_bind_stages, _pipeline, _unroll),
}
"""The steps after a sketch's own steps, for every kind of search."""
