"""In: a compute graph. Out: the steps of its untuned program.

Always: fast to make and correct; no tile size is chosen.

Elementwise producers are inlined, outer loops run in parallel, and stages that do not reuse data (elementwise,
pooling, softmax) get a vector loop over their
last axis. A stage that would need tiling keeps its naive loops: making those fast is what tuning is for.
"""

from compiler.schedule.access import consumers, is_strictly_inlineable, needs_multi_level_tiling
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.state import Annotation, IterKind, State
from compiler.schedule.steps import Annotate, ComputeInline, Fuse, Step
from compiler.te.tensor import ComputeOp

_PARALLEL_ITERATIONS = 64


def default_steps(dag: ComputeDAG) -> tuple[Step, ...]:
    """Steps of the untuned program of `dag`."""
    state = State.initial(dag)
    for stage_id in range(len(state.stages) - 1, -1, -1):
        if _always_inlined(state, stage_id):
            state = state.apply(ComputeInline(stage_id))
    inlined = {step.stage for step in state.steps}
    for stage_id, stage in enumerate(state.stages):
        if isinstance(stage.op, ComputeOp) and stage_id not in inlined and stage.op.axes:
            state = _annotated(state, stage_id)
    return tuple(step for step in state.steps if isinstance(step, Step))


def _always_inlined(state: State, stage_id: int) -> bool:
    stage = state.stages[stage_id]
    if not stage.is_compute or stage.has_reduce_iter or stage_id in state.dag.output_ids:
        return False
    return is_strictly_inlineable(state.dag, stage_id) and bool(consumers(state, stage_id))


def _annotated(state: State, stage_id: int) -> State:
    """Outer loops in parallel, the last axis in vectors; a rank-1 stage gets the one that suits its size."""
    stage = state.stages[stage_id]
    spatial = [index for index, iterator in enumerate(stage.iters) if iterator.kind is IterKind.SPATIAL]
    tiled = needs_multi_level_tiling(state.dag, stage_id)
    last = spatial[-1]
    if not tiled and stage.iters[last].extent != 1:
        state = state.apply(Annotate(stage_id, last, Annotation.VECTORIZE))
        spatial = spatial[:-1]
    outer: list[int] = []
    total = 1
    for index in spatial:
        extent = stage.iters[index].extent
        if total >= _PARALLEL_ITERATIONS or not isinstance(extent, int):
            break
        outer.append(index)
        total *= extent
    if total == 1:
        return state
    if len(outer) > 1:
        state = state.apply(Fuse(stage_id, tuple(outer)))
    return state.apply(Annotate(stage_id, 0, Annotation.PARALLEL))
