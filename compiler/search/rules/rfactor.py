"""Sketch rules of a long reduction over few points.

On a CPU it is factored into two steps, and the factor stays open; on a GPU the threads of a block share it.
"""

from dataclasses import dataclass
from math import prod

from retune.compiler.schedule.reads import needs_multi_level_tiling, single_consumer
from retune.compiler.schedule.state import Annotation, IterKind, State
from retune.compiler.schedule.steps import Annotate, ComputeAt, FollowSplit, Fuse, Reorder, Rfactor, Split
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import (
    common_outer_loops,
    has_cache_write,
    loop_volumes,
    needs_rfactor,
    split_steps,
)
from retune.compiler.search.rules.tiling import literal_extent

_NEGLIGIBLE = 16
"""A stage is negligible if another stage takes this many times as long."""


@dataclass(frozen=True, slots=True)
class AddRfactor:
    """Reduce parts first, for more parallelism or for vector lanes, then the parts.

    before: for k: c += a[k]
    after:  for k.0: for k.1: c.rf[k.0] += a[…]; for k.0: c += c.rf[k.0]           (the outer part: threads)
            for k.0: for k.1: c.rf[k.1] += a[…]; for k.1: c += c.rf[k.1]           (the inner part: vector lanes)
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """APPLY if the reduction is long for its points, the stage is no write cache and its work is not negligible."""
        wanted = needs_rfactor(context, state, stage) and not has_cache_write(state, stage)
        if wanted and "NegligibleReductions" not in context.options.without_rules:
            wanted = not _is_negligible(context, state, stage)
        return Verdict.APPLY if wanted else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The outer part factored, and the inner part; the factor is 1 until the derivation ends."""
        state, reduction = fuse_reductions(state, stage)
        loop = state.stages[stage].iters[reduction]
        state = state.apply(Split(stage, reduction, literal_extent(loop), (1,)))
        spatial = sum(iterator.kind is IterKind.SPATIAL for iterator in state.stages[stage].iters)
        outer = state.apply(Rfactor(stage, reduction, spatial))
        inner = state.apply(Rfactor(stage, reduction + 1, spatial))
        loops = range(len(inner.stages[stage].iters))
        # The factored axis goes innermost, where it may become the vector loop.
        order = (*(number for number in loops if number != spatial), spatial)
        return (outer, stage - 1), (inner.apply(Reorder(stage, order)), stage - 1)


def _is_negligible(context: SketchContext, state: State, stage: int) -> bool:
    """Whether another stage takes so much longer on all cores that the order of these terms does not matter. Each stage
    with the choice multiplies the sketches by three.
    """
    cores = context.hardware.num_cores
    points, reduction = loop_volumes(state, stage)
    longest = max(prod(loop_volumes(state, number)) for number in range(len(state.stages))) / cores
    # Without the choice, one core sums each point.
    return _NEGLIGIBLE * points * reduction / min(points, cores) <= longest


def fuse_reductions(state: State, stage: int) -> tuple[State, int]:
    """The state with all reduction loops of an untiled stage fused into one, and that loop's number."""
    iters = state.stages[stage].iters
    reductions = tuple(number for number, iterator in enumerate(iters) if iterator.kind is IterKind.REDUCTION)
    if len(reductions) > 1:
        state = state.apply(Fuse(stage, reductions))
    return state, reductions[0]


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
