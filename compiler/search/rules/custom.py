"""Sketch rules defined by two functions of the user.

They come before the built-in rules, in the order of registration.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from retune.compiler.schedule.state import State
from retune.compiler.search.rules.base import SketchContext, Verdict


@dataclass(frozen=True, slots=True)
class PreloadCustomSketchRule:
    """A custom rule, given to `SketchPolicy` in `init_search_callbacks`."""

    condition: Callable[[Any, State, int], int]
    """`condition(policy, state, stage)` returns PASS, APPLY or APPLY_AND_SKIP_REST; other values warn and are
    the last.
    """
    apply: Callable[[Any, State, int], Iterable[Any]]
    """`apply(policy, state, stage)` returns pairs of a state and the stage to visit next, -1 to end the derivation. The
    search chooses unknown split lengths; known lengths stay.
    """
    name: str = "custom rule"
    """For warnings."""

    PASS: ClassVar[int] = 0
    APPLY: ClassVar[int] = 1
    APPLY_AND_SKIP_REST: ClassVar[int] = 2

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        answer = self.condition(context.policy, state, stage)
        if isinstance(answer, bool) or not isinstance(answer, int) or answer not in (0, 1, 2):
            warnings.warn(
                f"{self.name}: its condition answered {answer!r}, which is none of 0, 1, 2; taken as 2", stacklevel=2
            )
            return Verdict.APPLY_AND_STOP
        return Verdict(answer)

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterable[tuple[State, int]]:
        for after, following in self.apply(context.policy, state, stage):
            yield after, int(following)
