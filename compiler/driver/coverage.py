"""In: what each kernel of a compiled network was made from. Out: how much of the network each origin serves.

Always: shares are of all kernels, those that are not worth tuning too, and add up to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.executor.network import Coverage, Origin

_WORDS = {
    Origin.RECORD: "tuned records",
    Origin.TRANSFER: "programs of similar kernels",
    Origin.GUESS: "first guesses",
    Origin.CONTEXT: "programs of the dispatch context",
    Origin.DEFAULT: "the default schedule",
}


@dataclass(frozen=True, slots=True)
class Share:
    """What one origin serves: distinct `kernels`, `calls` of them in a run, operations of these calls, and which share
    of all calls and of all operations that is.
    """

    origin: Origin
    kernels: int
    calls: int
    flops: float
    share_of_calls: float
    share_of_flops: float

    def __str__(self) -> str:
        return f"{_WORDS[self.origin]} {self.share_of_flops:.1%} of the FLOPs, {self.share_of_calls:.1%} of the calls"


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """A compiled network's kernels, and the shares of the origins that serve at least one of them."""

    shares: tuple[Share, ...]
    kernels: tuple[Coverage, ...]

    @property
    def tunable(self) -> tuple[Coverage, ...]:
        """The kernels that are worth tuning."""
        return tuple(kernel for kernel in self.kernels if kernel.tunable)

    @property
    def fallbacks(self) -> tuple[Coverage, ...]:
        """Those of them that run untuned, with the default schedule."""
        return tuple(kernel for kernel in self.tunable if kernel.origin == Origin.DEFAULT)

    def fallback_text(self) -> str:
        """How many kernels fell back to the default schedule, of how many, and which; empty where none did."""
        names = [f"{kernel.task} ({kernel.note})" if kernel.note else kernel.task for kernel in self.fallbacks]
        if not names:
            return ""
        have = "has" if len(names) == 1 else "have"
        return (
            f"{len(names)} of {len(self.tunable)} kernels worth tuning {have} no program that was tuned, and the "
            f"default schedule: {', '.join(names)}"
        )

    @classmethod
    def of(cls, kernels: Sequence[Coverage]) -> "CoverageReport":
        """Count the calls and operations by origin."""
        calls = sum(kernel.weight for kernel in kernels)
        flops = sum(kernel.weight * kernel.flops for kernel in kernels)
        shares = []
        for origin in Origin:
            served = [kernel for kernel in kernels if kernel.origin == origin]
            if not served:
                continue
            own_calls = sum(kernel.weight for kernel in served)
            own_flops = sum(kernel.weight * kernel.flops for kernel in served)
            share = Share(origin, len(served), own_calls, own_flops, own_calls / calls, own_flops / (flops or 1.0))
            shares.append(share)
        return cls(tuple(shares), tuple(kernels))

    def __str__(self) -> str:
        """One line for people."""
        return f"served by {'; '.join(map(str, self.shares))}"
