"""Sketch rules of the loops of one stage: leave it, inline it, cache it, tile it, alone or with its consumer.

A GPU also fetches the tile that a tiled stage reads into shared memory; the same stage is visited again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from retune.compiler.schedule.reads import consumers, needs_multi_level_tiling
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import CacheRead, CacheWrite, ComputeAt, ComputeInline
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import (
    elementwise_consumer,
    fusible_consumer,
    has_cache_write,
    has_cross_thread_reduction,
    last_outer_reduction,
    should_always_be_inlined,
)
from retune.compiler.search.rules.tiling import follow_tiling, tile_stage


@dataclass(frozen=True, slots=True)
class SkipStage:
    """Leave the stage unchanged. It always applies, so that a derivation never gets stuck."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        return Verdict.APPLY

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The same state, one stage further."""
        return ((state, stage - 1),)


@dataclass(frozen=True, slots=True)
class AlwaysInline:
    """Inline a stage that is no output, reduces nothing and (on a CPU) is strictly inlineable.

    before: t = a + b; c = max(t, 0)      after: c = max(a + b, 0)
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        return Verdict.APPLY_AND_STOP if should_always_be_inlined(context, state, stage) else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        return ((state.apply(ComputeInline(stage)), stage - 1),)


@dataclass(frozen=True, slots=True)
class AddCacheWrite:
    """Compute a tiled stage into a local buffer and copy to the result, where no elementwise stage follows.

    before: for i: for j: for k: c[i, j] += …
    after:  for i: for j: for k: c.local[i, j] += …
            for i: for j: c[i, j] = c.local[i, j]
    """

    ends_visit: bool = False
    """Whether no later rule is tried, as on a GPU, where accumulators belong in registers."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY (APPLY_AND_STOP with `ends_visit`) if the stage needs tiling and has no consumer to fuse with."""
        # A CPU tiles a further product of the same consumer in memory: a cache of each would triple the sketches.
        consumer = fusible_consumer if self.ends_visit else elementwise_consumer
        if not needs_multi_level_tiling(state.dag, stage) or consumer(state, stage) is not None:
            return Verdict.SKIP
        return Verdict.APPLY_AND_STOP if self.ends_visit else Verdict.APPLY

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The state with the cache stage, which gets the number of the original and is visited next."""
        return ((state.apply(CacheWrite(stage, "local")), stage),)


@dataclass(frozen=True, slots=True)
class MultiLevelTiling:
    """Tile a stage with data reuse, on its own."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        return Verdict.APPLY_AND_STOP if needs_multi_level_tiling(state.dag, stage) else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:
        tiled, _ = tile_stage(state, stage, context.tiling)
        return ((tiled, stage - 1),)


@dataclass(frozen=True, slots=True)
class MultiLevelTilingWithFusion:
    """Tile a stage and compute it at an outer tile level of its elementwise consumer.

    before: for i: for j: for k: c[i, j] += …         for i: for j: r[i, j] = f(c[i, j])
    after:  for i0 j0: (for i1 j1 k0 i2 j2 k1 i3 j3: c += …); for i1 j1: r = f(c)        (level 1)
    """

    levels: tuple[int, ...] = (1, 2)
    ends_visit: bool = False
    """Whether no later rule is tried, as on a GPU, where tiles stay in registers."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY; APPLY_AND_STOP with `ends_visit`, or for a cache stage: tiling it without its copy is pointless."""
        if not needs_multi_level_tiling(state.dag, stage) or fusible_consumer(state, stage) is None:
            return Verdict.SKIP
        return Verdict.APPLY_AND_STOP if self.ends_visit or has_cache_write(state, stage) else Verdict.APPLY

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterator[tuple[State, int]]:
        """A state for each level of the structure at which the consumer can compute the stage."""
        consumer = fusible_consumer(state, stage)
        assert consumer is not None, "judge() has found a consumer"
        structure = context.tiling
        tiled, splits = tile_stage(state, stage, structure)
        for level in self.levels:
            # At the innermost level no loop of the consumer would be inside.
            if level <= len(structure) and structure[level - 1] == "S" and level < structure.count("S"):
                followed = follow_tiling(tiled, consumer, splits, level)
                yield followed.apply(ComputeAt(stage, consumer, level * len(splits) - 1)), stage - 1


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
