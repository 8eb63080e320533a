"""Sketch rule: fetch the tile that a tiled stage reads into shared memory (GPU).

The same stage is visited again.
"""

from dataclasses import dataclass

from retune.compiler.schedule.reads import consumers, needs_multi_level_tiling
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import CacheRead, ComputeAt
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import has_cross_thread_reduction, last_outer_reduction


@dataclass(frozen=True, slots=True)
class AddCacheRead:
    """Fetch what a step of the outermost reduction tile reads into memory that the threads of a block share.

    before: for … k.0: for … k.1 k.2: c.local += a * b
    after:  for … k.0: (for ax0 ax1: a.shared = a); for … k.1 k.2: c.local += a.shared * b
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY_AND_STOP if the first reader is tiled, reads this very stage, and does not reduce across threads."""
        readers = consumers(state, stage)
        if not readers or not needs_multi_level_tiling(state.dag, readers[0]):
            return Verdict.SKIP
        if has_cross_thread_reduction(state, readers[0]) or readers[0] not in state.dag.readers[stage]:
            return Verdict.SKIP
        return Verdict.APPLY_AND_STOP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The state with a shared cache for every tiled reader; other readers read the stage itself."""
        tiled = [
            reader
            for reader in consumers(state, stage)
            if needs_multi_level_tiling(state.dag, reader) and not has_cross_thread_reduction(state, reader)
        ]
        for count, reader in enumerate(tiled):
            # Every cache is a stage before the remaining readers, whose numbers grow by one.
            state = state.apply(CacheRead(stage, "shared", (reader + count,)))
            moved = reader + count + 1
            state = state.apply(ComputeAt(stage + 1, moved, last_outer_reduction(state, moved)))
        return ((state, stage),)
