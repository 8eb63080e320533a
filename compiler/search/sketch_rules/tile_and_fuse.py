"""Sketch rule: compute a tiled stage inside the tiles of its one elementwise consumer.

Both are tiled alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from retune.compiler.schedule.access import needs_multi_level_tiling
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import ComputeAt
from retune.compiler.search.sketch_rules.base import SketchContext, Verdict
from retune.compiler.search.sketch_rules.facts import fusible_consumer, has_cache_write
from retune.compiler.search.sketch_rules.tiling import follow_tiling, tile_stage


@dataclass(frozen=True, slots=True)
class MultiLevelTilingWithFusion:
    """Tile a stage and compute it at an outer tile level of its elementwise consumer.

    before: for i: for j: for k: c[i, j] += …         for i: for j: r[i, j] = f(c[i, j])
    after:  for i0 j0: (for i1 j1 k0 i2 j2 k1 i3 j3: c += …); for i1 j1: r = f(c)        (level 1)
    """

    levels: tuple[int, ...] = (1, 2)
    ends_visit: bool = False
    """Whether no later rule is asked, as on a GPU, where tiles stay in registers."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY, or APPLY_AND_STOP for a cache stage, pointless to tile without its copy, and where `ends_visit`."""
        if not needs_multi_level_tiling(state.dag, stage) or fusible_consumer(state, stage) is None:
            return Verdict.SKIP
        return Verdict.APPLY_AND_STOP if self.ends_visit or has_cache_write(state, stage) else Verdict.APPLY

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterator[tuple[State, int]]:
        """One state for each level of the structure at which the consumer may take the stage in."""
        consumer = fusible_consumer(state, stage)
        assert consumer is not None, "judge() has found a consumer"
        structure = context.tiling
        tiled, splits = tile_stage(state, stage, structure)
        for level in self.levels:
            if level <= len(structure) and structure[level - 1] == "S" and level < structure.count("S"):
                followed = follow_tiling(tiled, consumer, splits, level)
                yield followed.apply(ComputeAt(stage, consumer, level * len(splits) - 1)), stage - 1
