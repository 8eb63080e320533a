"""Sketch rule for GPUs: the threads of a block share a long reduction over few points."""

from dataclasses import dataclass

from retune.compiler.errors import ScheduleError
from retune.compiler.schedule.access import needs_multi_level_tiling, single_consumer
from retune.compiler.schedule.state import Annotation, State
from retune.compiler.schedule.steps import Annotate, ComputeAt, FollowSplit, Split
from retune.compiler.search.sketch_rules.base import SketchContext, Verdict
from retune.compiler.search.sketch_rules.facts import common_outer_loops, has_cache_write, loop_volumes, split_steps
from retune.compiler.search.sketch_rules.rfactor import fuse_reductions
from retune.compiler.search.sketch_rules.tiling import literal_extent

_THREAD = int(Annotation.THREAD_X)


@dataclass(frozen=True, slots=True)
class CrossThreadReduction:
    """Spread a reduction over threads; inside the loops of its only reader when both have outer loops in common.

    before: for i: for k: m[i] = max(…)                          after: for i: for k.0: threadIdx.x k.1: m[i] = max(…)
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """APPLY when the points alone would not keep a block busy."""
        if not state.stages[stage].is_compute or has_cache_write(state, stage):
            return Verdict.SKIP
        space, reduction = loop_volumes(state, stage)
        if needs_multi_level_tiling(state.dag, stage):
            # As in Ansor: a tiled product is spread only if its points do not fill a block and are fewer than its
            # terms.
            wanted = space <= context.hardware.max_threads_per_block and space < reduction
        else:
            # As in Ansor, a reduction that a warp does in one step is not worth spreading.
            wanted = reduction > 1 and reduction > context.hardware.warp_size
        return Verdict.APPLY if wanted else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:
        """The state with the reduction spread over a warp's threads, a number that the search may change."""
        warp = context.hardware.warp_size
        state, reduction = fuse_reductions(state, stage)
        target = single_consumer(state, stage)
        common = 0 if target is None else common_outer_loops(state, stage, target)
        if target is None or not common or needs_multi_level_tiling(state.dag, target):
            extent = literal_extent(state.stages[stage].iters[reduction])
            state = state.apply(Split(stage, reduction, extent, (warp,)))
            return ((state.apply(Annotate(stage, reduction + 1, _THREAD)), stage - 1),)
        if not split_steps(state, target):
            state = _spread(state, target, warp)
        splits = split_steps(state, target)
        if len(splits) != 1:
            name = state.stages[target].op.name
            raise ScheduleError(f"{name}: has {len(splits)} splits; a reduction inside its loops can follow only one")
        state = state.apply(FollowSplit(stage, reduction, splits[0], 1))
        state = state.apply(Annotate(stage, reduction + 1, _THREAD))
        return ((state.apply(ComputeAt(stage, target, common - 1)), stage - 1),)


def _spread(state: State, target: int, warp: int) -> State:
    """The last loop of an elementwise reader over a warp's threads."""
    described = state.stages[target]
    if described.has_reduce_iter:
        raise ScheduleError(f"{described.op.name}: reduces, and its reduction was not spread over threads")
    last = len(described.iters) - 1
    state = state.apply(Split(target, last, literal_extent(described.iters[last]), (warp,)))
    return state.apply(Annotate(target, last + 1, _THREAD))
