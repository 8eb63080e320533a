"""In: a state and the stage that the derivation visits. Out: what a sketch rule is. Always: the engine that runs rules
knows none of them by name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from retune.compiler.schedule.state import State
from retune.compiler.search.options import SearchOptions
from retune.compiler.target import HardwareParams, Target


class Verdict(Enum):
    """What a rule says about a visit."""

    SKIP = 0
    APPLY = 1
    APPLY_AND_STOP = 2


@dataclass(frozen=True, slots=True)
class SketchContext:
    """What a rule may read besides the state."""

    hardware: HardwareParams
    options: SearchOptions
    policy: Any = None
    """The policy that asks, for custom rules."""
    target: Target | None = None
    """What code is generated for; None where only the hardware parameters are known."""

    @property
    def gpu(self) -> bool:
        """Whether programs bind loops to blocks and threads of a GPU."""
        return self.hardware.is_gpu

    @property
    def tiling(self) -> str:
        """The loop structure of a tiled stage on this kind of machine."""
        return self.options.gpu_tiling if self.gpu else self.options.tiling


class SketchRule(Protocol):
    """One derivation rule: a frozen value without state of its own."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """Whether the rule applies to this stage, and whether later rules may still be asked."""

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterable[tuple[State, int]]:
        """The states that follow, each with the stage to visit next; only called after a verdict other than SKIP."""
