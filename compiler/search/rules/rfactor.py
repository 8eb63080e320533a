"""Sketch rule: factor a long reduction over few points into two steps (CPU).

The factor stays open.
"""

from dataclasses import dataclass
from math import prod

from retune.compiler.schedule.state import IterKind, State
from retune.compiler.schedule.steps import Fuse, Reorder, Rfactor, Split
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import has_cache_write, loop_volumes, needs_rfactor
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
        if wanted and not context.options.ansor_rules:
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
