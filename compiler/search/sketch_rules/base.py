"""The interface of sketch rules, and what a rule may read.

The engine that runs the rules knows none of them by name.
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
class SearchKind:
    """What the search does differently on CPUs and on GPUs, as plain values; `name` is the key of tables of the rest:
    derivation rules, sketch spaces, the steps that end a sketch.
    """

    name: str
    tiling: str
    """The option with the loop structure of a tiled stage."""
    unroll_limits: str
    """The option with the limits of unrolling."""
    recomputes: bool
    """Whether a stage that does not reduce is recomputed at every read, however much that is."""


CPU_SEARCH = SearchKind("cpu", "tiling", "unroll_limits", recomputes=False)
GPU_SEARCH = SearchKind("gpu", "gpu_tiling", "gpu_unroll_limits", recomputes=True)


def search_kind(hardware: HardwareParams) -> SearchKind:
    """The kind of search for a machine."""
    return GPU_SEARCH if hardware.is_gpu else CPU_SEARCH


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
    def kind(self) -> "SearchKind":
        """What the search does on this kind of machine."""
        return search_kind(self.hardware)

    @property
    def tiling(self) -> str:
        """The loop structure of a tiled stage on this kind of machine."""
        return str(getattr(self.options, self.kind.tiling))


class SketchRule(Protocol):
    """One derivation rule: a frozen value without state of its own."""

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """Whether the rule applies to this stage, and whether later rules may still be asked."""

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterable[tuple[State, int]]:
        """The states that follow, each with the stage to visit next; only called after a verdict other than SKIP."""
