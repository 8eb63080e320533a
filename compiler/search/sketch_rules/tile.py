"""Sketch rule: tile a stage whose inputs are read many times over all levels.

No later rule is asked for this stage.
"""

from dataclasses import dataclass

from retune.compiler.schedule.access import needs_multi_level_tiling
from retune.compiler.schedule.state import State
from retune.compiler.search.sketch_rules.base import SketchContext, Verdict
from retune.compiler.search.sketch_rules.tiling import tile_stage


@dataclass(frozen=True, slots=True)
class MultiLevelTiling:
    """Tile a stage with data reuse, on its own."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY_AND_STOP for a stage that needs tiling."""
        return Verdict.APPLY_AND_STOP if needs_multi_level_tiling(state.dag, stage) else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:
        """The tiled state."""
        tiled, _ = tile_stage(state, stage, context.tiling)
        return ((tiled, stage - 1),)
