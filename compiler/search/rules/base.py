"""The interface of sketch rules and their context, and rules defined by two functions of the user.

Those come before the built-in rules, in the order of registration.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.schedule.state import State
from retune.compiler.search.options import SearchOptions


class Verdict(Enum):
    """The answer of a rule to a visit."""

    SKIP = 0
    APPLY = 1
    APPLY_AND_STOP = 2


@dataclass(frozen=True, slots=True)
class SearchKind:
    """The differences of the search between CPUs and GPUs, as plain values. `name` is the key of the tables of
    derivation rules, sketch spaces and the steps that end a sketch.
    """

    name: str
    tiling: str
    """The option with the loop structure of a tiled stage."""
    unroll_limits: str
    """The option with the limits of unrolling."""
    recomputes: bool
    """Whether a stage without a reduction is recomputed at every read, whatever its cost."""


CPU_SEARCH = SearchKind("cpu", "tiling", "unroll_limits", recomputes=False)
GPU_SEARCH = SearchKind("gpu", "gpu_tiling", "gpu_unroll_limits", recomputes=True)


def search_kind(hardware: HardwareParams) -> SearchKind:
    return GPU_SEARCH if hardware.is_gpu else CPU_SEARCH


@dataclass(frozen=True, slots=True)
class SketchContext:
    """Inputs of a rule besides the state."""

    hardware: HardwareParams
    options: SearchOptions
    policy: object = None
    """The calling policy, for custom rules."""
    target: Target | None = None
    """The target of code generation; None if only the hardware parameters are known."""

    @property
    def kind(self) -> "SearchKind":
        return search_kind(self.hardware)

    @property
    def tiling(self) -> str:
        """The loop structure of a tiled stage on this kind of machine."""
        return str(getattr(self.options, self.kind.tiling))


class SketchRule(Protocol):
    """A derivation rule: a frozen, stateless value."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """Whether the rule applies to this stage, and whether later rules are tried."""

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterable[tuple[State, int]]:
        """The next states, each with the stage to visit next; only called after a verdict other than SKIP."""


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
