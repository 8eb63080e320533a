"""Sketch rule: go on to the next stage without a change.

It always applies, so that a derivation never gets stuck.
"""

from dataclasses import dataclass

from retune.compiler.schedule.state import State
from retune.compiler.search.sketch_rules.base import SketchContext, Verdict


@dataclass(frozen=True, slots=True)
class SkipStage:
    """Leave the stage as it is."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """Always APPLY."""
        return Verdict.APPLY

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The same state, one stage further."""
        return ((state, stage - 1),)
