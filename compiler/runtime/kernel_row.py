"""`KernelRow`: the data of one kernel of a network, as reports, tables, events and the network's file hold them.

`CoverageReport` has the shares of a network's calls and FLOPs by origin of the programs, such as records. Shares are of
all kernels, also those that are not worth tuning, and add up to 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from retune.compiler.core.json_reader import JsonObject
from retune.compiler.runtime.readable import finite, milliseconds


class ProgramOrigin(StrEnum):
    """Where a kernel's program comes from."""

    RECORD = "record"  # a measured record of the very task
    TRANSFER = "transfer"  # a record of a similar task, fitted to this one's sizes
    UNTESTED = "guess"  # the candidate that the search would try first
    CONTEXT = "context"  # a dispatch context that was entered
    DEFAULT = "default"  # the default schedule


WORDS = {
    ProgramOrigin.RECORD: "record",
    ProgramOrigin.TRANSFER: "program of a similar kernel",
    ProgramOrigin.UNTESTED: "untested candidate",
    ProgramOrigin.CONTEXT: "program of the dispatch context",
    ProgramOrigin.DEFAULT: "default schedule",
}

_RENAMED = {"task": "name", "workload_key": "task_key"}
"""Fields of compiled networks that earlier versions wrote, and their names today."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel of a network: its cost, and the origin of its program.

    `weight` is how often a run of the network calls the kernel; `flops` are the operations of a call, `moved_bytes`
    what it has to read and write at least. Times are seconds per call, infinite while unknown. `layer` is the same text
    for all ways to compute one result, empty where there is one way; a kernel is `behind` where another way is faster,
    and `used` unless another way is. `rounds` and `trials` are those of the run, `stop_reason` says why it gave the
    kernel no more, `failed_rules` which sketch rules raised. `record_id` is that of the program's record, empty without
    one; `note` says why no record is used. A kernel that is not `tunable` moves data, or computes too little to search.
    """

    name: str
    task_key: str = ""
    weight: int = 1
    flops: float = 0.0
    moved_bytes: int = 0
    tunable: bool = True
    layer: str = ""
    rounds: int = 0
    trials: int = 0
    default_seconds: float = math.inf
    best_seconds: float = math.inf
    stop_reason: str = ""
    behind: bool = False
    failed_rules: tuple[str, ...] = ()
    origin: ProgramOrigin = ProgramOrigin.DEFAULT
    record_id: str = ""
    note: str = ""
    used: bool = True

    @classmethod
    def of(cls, row: JsonObject) -> Self:
        """The row of fields as JSON has them. Raises: TypeError, ValueError."""
        told = {_RENAMED.get(name, name): value for name, value in row.items() if value is not None}
        known = {field.name: told[field.name] for field in fields(cls) if field.name in told}
        known |= {"origin": ProgramOrigin(told.get("origin", "")), "failed_rules": tuple(told.get("failed_rules", ()))}
        return cls(**known)

    def to_json(self) -> dict[str, object]:
        """All fields and the speed as JSON has them; a time that is unknown is null."""
        fields_: dict[str, Any] = finite({**asdict(self), "gflops": self.gflops})
        return fields_

    @property
    def gflops(self) -> float:
        """Speed of the best program in 10^9 operations per second; 0 while it is unknown."""
        known = math.isfinite(self.best_seconds) and self.best_seconds > 0
        return self.flops / self.best_seconds / 1e9 if known else 0.0

    @property
    def weighted_seconds(self) -> float:
        """Seconds that all calls take in a run of the network; 0 while unknown, or where nothing uses the kernel."""
        return self.weight * self.best_seconds if self.used and math.isfinite(self.best_seconds) else 0.0

    @property
    def origin_text(self) -> str:
        """The origin of the program as text, with the id of its record."""
        if not self.used:
            return "not used"
        is_record = self.origin is ProgramOrigin.RECORD
        return f"{WORDS[self.origin]}{f' {self.record_id}' if is_record else ''}"

    def cells(self, whole: float = 0.0) -> dict[str, str]:
        """The row as text, by the headings of tables; `whole` is the time of all kernels, in seconds."""
        is_faster = self.gflops > 0 and math.isfinite(self.default_seconds)
        return {
            "kernel": self.name,
            "uses": str(self.weight),
            "share": f"{self.weighted_seconds / whole:.1%}" if whole and self.weighted_seconds else "-",
            "trials": str(self.trials),
            "default ms": milliseconds(self.default_seconds),
            "ms": milliseconds(self.best_seconds),
            "speedup": f"{self.default_seconds / self.best_seconds:.1f}x" if is_faster else "-",
            "GFLOP/s": f"{self.gflops:.1f}" if self.gflops else "-",
            "origin": f"{self.origin_text}{f' ({self.note})' if self.note else ''}",
        }


NUMERIC = ("uses", "share", "trials", "default ms", "ms", "speedup", "GFLOP/s")
"""The headings of columns that are aligned to the right."""


def kernel_table(rows: Iterable[KernelRow], headings: Sequence[str]) -> list[tuple[str, ...]]:
    """The cells under `headings` of all rows, those first that take most of the network's time."""
    ordered = sorted(rows, key=lambda row: -row.weighted_seconds)
    whole = sum(row.weighted_seconds for row in ordered)
    return [tuple(row.cells(whole)[heading] for heading in headings) for row in ordered]


PLURALS = {
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
        return f"{PLURALS[self.origin]} {self.share_of_flops:.1%} of the FLOPs, {self.share_of_calls:.1%} of the calls"


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
