"""Coverage of a compiled network: the shares of its calls and FLOPs by origin of the programs, such as records.

Shares are of all kernels, also those that are not worth tuning, and add up to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.compiler.runtime.kernel_row import KernelRow, ProgramOrigin

WORDS = {
    ProgramOrigin.RECORD: "tuned records",
    ProgramOrigin.TRANSFER: "programs of similar kernels",
    ProgramOrigin.UNTESTED: "untested candidates",
    ProgramOrigin.CONTEXT: "programs of the dispatch context",
    ProgramOrigin.DEFAULT: "the default schedule",
}


@dataclass(frozen=True, slots=True)
class Share:
    """The kernels whose programs have one origin: `kernels` is the number of distinct kernels, `tunable` of
    those worth tuning.

    `calls` and `flops` count one run of the network; the shares are of all its calls and FLOPs.
    """

    origin: ProgramOrigin
    kernels: int
    tunable: int
    calls: int
    flops: float
    share_of_calls: float
    share_of_flops: float

    def __str__(self) -> str:
        return f"{WORDS[self.origin]} {self.share_of_flops:.1%} of the FLOPs, {self.share_of_calls:.1%} of the calls"


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """A compiled network's kernels, and the share of every origin of their programs."""

    shares: tuple[Share, ...]
    kernels: tuple[KernelRow, ...]

    @property
    def tunable(self) -> tuple[KernelRow, ...]:
        """The kernels that are worth tuning."""
        return tuple(kernel for kernel in self.kernels if kernel.tunable)

    @property
    def fallbacks(self) -> tuple[KernelRow, ...]:
        """Those of them that run untuned, with the default schedule."""
        return tuple(kernel for kernel in self.tunable if kernel.origin == ProgramOrigin.DEFAULT)

    def fallback_text(self) -> str:
        """How many kernels use the default schedule, of those worth tuning, and which, with the reason; empty where
        none does."""
        notes: dict[str, list[str]] = {}
        for kernel in self.fallbacks:
            notes.setdefault(kernel.note, []).append(kernel.name)
        if not notes:
            return ""
        count = f"{len(self.fallbacks)} of {len(self.tunable)} kernels worth tuning"
        names = "; ".join(f"{', '.join(names)}{f' ({note})' if note else ''}" for note, names in notes.items())
        return f"{count} {'uses' if len(self.fallbacks) == 1 else 'use'} the default schedule: {names}"

    @classmethod
    def of(cls, kernels: Sequence[KernelRow]) -> "CoverageReport":
        """Count the calls and operations by origin."""
        calls = sum(kernel.weight for kernel in kernels)
        flops = sum(kernel.weight * kernel.flops for kernel in kernels)
        shares = []
        for origin in ProgramOrigin:
            rows = [kernel for kernel in kernels if kernel.origin == origin]
            if not rows:
                continue
            own_calls = sum(kernel.weight for kernel in rows)
            own_flops = sum(kernel.weight * kernel.flops for kernel in rows)
            tunable = sum(kernel.tunable for kernel in rows)
            parts = own_calls / (calls or 1), own_flops / (flops or 1.0)
            shares.append(Share(origin, len(rows), tunable, own_calls, own_flops, *parts))
        return cls(tuple(shares), tuple(kernels))

    def __str__(self) -> str:
        """One line for people."""
        return f"programs from {'; '.join(map(str, self.shares))}"
