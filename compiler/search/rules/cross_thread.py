"""Sketch rule for GPUs: the threads of a block share a long reduction over few points."""

from dataclasses import dataclass

from retune.compiler.schedule.reads import needs_multi_level_tiling, single_consumer
from retune.compiler.schedule.state import Annotation, State
from retune.compiler.schedule.steps import Annotate, ComputeAt, FollowSplit, Split
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import common_outer_loops, has_cache_write, loop_volumes, split_steps
from retune.compiler.search.rules.rfactor import fuse_reductions
from retune.compiler.search.rules.tiling import literal_extent

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
            # As in Ansor: a reduction that a warp does in one step is not spread.
            wanted = reduction > 1 and reduction > context.hardware.warp_size
        return Verdict.APPLY if wanted else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:
        """The state with the reduction spread over a warp's threads, a number that the search may change."""
        warp = context.hardware.warp_size
        state, reduction = fuse_reductions(state, stage)
        target = single_consumer(state, stage)
        common = 0 if target is None else common_outer_loops(state, stage, target)
        # A reduction inside the loops of its reader follows their only split, the split over the threads.
        splits = () if target is None else split_steps(state, target)
        if target is None or not common or not _takes_in(state, target, splits):
            extent = literal_extent(state.stages[stage].iters[reduction])
            state = state.apply(Split(stage, reduction, extent, (warp,)))
            return ((state.apply(Annotate(stage, reduction + 1, _THREAD)), stage - 1),)
        if not splits:
            splits = (len(state.steps),)
            state = _spread(state, target, warp)
        state = state.apply(FollowSplit(stage, reduction, splits[0], 1))
        state = state.apply(Annotate(stage, reduction + 1, _THREAD))
        return ((state.apply(ComputeAt(stage, target, common - 1)), stage - 1),)


def _takes_in(state: State, target: int, splits: tuple[int, ...]) -> bool:
    """Whether a reader has a single split, or none and neither another producer's tiles nor a reduction."""
    if splits or needs_multi_level_tiling(state.dag, target):
        return len(splits) == 1 and not needs_multi_level_tiling(state.dag, target)
    return not state.stages[target].is_tiled and not state.stages[target].has_reduce_iter


def _spread(state: State, target: int, warp: int) -> State:
    """Split the last loop of an elementwise reader over a warp's threads."""
    described = state.stages[target]
    last = len(described.iters) - 1
    state = state.apply(Split(target, last, literal_extent(described.iters[last]), (warp,)))
    return state.apply(Annotate(target, last + 1, _THREAD))
