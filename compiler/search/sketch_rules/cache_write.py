"""Sketch rule: compute a tiled stage into a local cache when no elementwise stage follows it.

The same stage is visited again, for the fusion rule.
"""

from dataclasses import dataclass

from retune.compiler.schedule.access import needs_multi_level_tiling
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import CacheWrite
from retune.compiler.search.sketch_rules.base import SketchContext, Verdict
from retune.compiler.search.sketch_rules.facts import fusible_consumer


@dataclass(frozen=True, slots=True)
class AddCacheWrite:
    """Compute into a local buffer and copy to the result.

    before: for i: for j: for k: c[i, j] += …
    after:  for i: for j: for k: c.local[i, j] += …
            for i: for j: c[i, j] = c.local[i, j]
    """

    ends_visit: bool = False
    """Whether no later rule is asked, as on a GPU, where accumulators belong in registers."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY, or APPLY_AND_STOP where `ends_visit`, when the stage needs tiling and has no elementwise consumer to
        fuse with.
        """
        if not needs_multi_level_tiling(state.dag, stage) or fusible_consumer(state, stage) is not None:
            return Verdict.SKIP
        return Verdict.APPLY_AND_STOP if self.ends_visit else Verdict.APPLY

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The state with the cache stage, which takes the number of the original and is visited next."""
        return ((state.apply(CacheWrite(stage, "local")), stage),)
