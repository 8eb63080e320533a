"""Sketch rule: inline a stage that only rearranges or maps its inputs.

No later rule sees such a stage.
"""

from dataclasses import dataclass

from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import ComputeInline
from retune.compiler.search.sketch_rules.base import SketchContext, Verdict
from retune.compiler.search.sketch_rules.facts import should_always_be_inlined


@dataclass(frozen=True, slots=True)
class AlwaysInline:
    """Inline a stage that is no output, reduces nothing and (on a CPU) is strictly inlineable.

    before: t = a + b; c = max(t, 0)      after: c = max(a + b, 0)
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """APPLY_AND_STOP for an inlineable stage."""
        return Verdict.APPLY_AND_STOP if should_always_be_inlined(context, state, stage) else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The state with the stage inlined."""
        return ((state.apply(ComputeInline(stage)), stage - 1),)
