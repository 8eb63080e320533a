"""The report of a run: what it found, as plain data and as Markdown."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import ORIGINS
from retune.compiler.runtime.atomic_write import write_text_atomically
from retune.compiler.runtime.kernel_row import NUMERIC, CoverageReport, KernelRow, ProgramOrigin, kernel_table
from retune.compiler.runtime.readable import busy_warning, count, finite, milliseconds
from retune.compiler.tune.limits import MachineLimits
from retune.compiler.tune.precision.request import PrecisionChoice
from retune.compiler.tune.tuning import TuningSummary
from retune.compiler.tune.winners import Confirmation

KERNEL_HEADINGS = ("kernel", "uses", "share", "trials", "default ms", "ms", "GFLOP/s", "origin")
"""The columns of the table of kernels."""
_SIDES = tuple("---:" if heading in NUMERIC else "---" for heading in KERNEL_HEADINGS)

TOLERANCE = 1e-4
"""How far an output may lie from the reference's, relative to the largest reference value: a few hundred roundings of
float32.
"""
# With unit roundoffs of 2^-11, 2^-11 and 2^-8 these are 61, 102 and 51 roundings.
ROUGH = {"tf32": 3e-2, "float16": 5e-2, "bfloat16": 2e-1}
"""The same for networks that compute with fewer digits, where ONNX Runtime does not say how far it is off itself."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run the network: its latency in seconds, and the largest error of its outputs relative to the
    reference's largest value. `is_peer` says that it is another library.
    """

    name: str
    seconds: float
    error: float | None
    is_peer: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ways to run the network, timed in turn in one process.

    `reference` names the peer that outputs were compared with, `note` says why a peer did not take part;
    `tolerance` is how far outputs may lie from the reference's, relative to their largest value. `contention` is the
    largest share of a time that other processes took, None where that is not known. With several `instances` at a
    time, the latency of a contender is the time of all over the number of their inferences.
    """

    reference: str
    contenders: tuple[Contender, ...]
    note: str = ""
    tolerance: float = TOLERANCE
    contention: float | None = None
    instances: int = 1

    @classmethod
    def of_shapes(cls, parts: Sequence[Self], weights: Sequence[float]) -> Self:
        """The comparison over shapes with weights: mean latencies, and of each contender the largest error, as a share
        of what is allowed at its shape.
        """
        first, contenders = parts[0], []
        for row in first.contenders:
            rows = [(same, part.tolerance) for part in parts for same in part.contenders if same.name == row.name]
            if len(rows) < len(parts):
                continue
            times = zip(rows, weights, strict=True)
            seconds = sum(weight * same.seconds for (same, _), weight in times) / sum(weights)
            errors = [same.error / tolerance for same, tolerance in rows if same.error is not None]
            error = max(errors) * first.tolerance if errors else None
            contenders.append(replace(row, seconds=seconds, error=error))
        means = f"Latencies are means over {count(len(parts), 'shape')}."
        notes = dict.fromkeys([means, *(part.note for part in parts if part.note)])
        contention = max((part.contention for part in parts if part.contention is not None), default=None)
        return replace(first, contenders=tuple(contenders), note=" ".join(notes), contention=contention)

    @property
    def is_right(self) -> bool:
        """Whether every output of ours is within tolerance of the reference."""
        return all(row.is_peer or row.error is None or row.error <= self.tolerance for row in self.contenders)

    def seconds(self, name: str) -> float:
        """The latency of one contender; infinite when it did not take part."""
        return next((each.seconds for each in self.contenders if each.name == name), math.inf)

    @property
    def keeps_defaults(self) -> bool:
        """Whether the network is right, and with the programs that were found no faster than with default schedules."""
        return self.is_right and self.seconds("tuned") >= self.seconds("untuned")

    def of_defaults(self) -> Self:
        """The comparison where the default schedules are kept for these reasons."""
        (untuned,) = (each for each in self.contenders if each.name == "untuned")
        tuned = replace(untuned, name="tuned")
        time_text = milliseconds(self.seconds("tuned"))
        note = f"The default schedules are kept: with the programs found the network took {time_text} ms."
        kept = tuple(tuned if each.name == "tuned" else each for each in self.contenders)
        return replace(self, contenders=kept, note=f"{self.note} {note}".strip())


@dataclass(frozen=True, slots=True)
class CompiledResult:
    """A compiled network: its file, the winners of the tuning tasks that came into question, how it compares, all its
    kernels, and what the machine can do.
    """

    artifact: Path
    winners: tuple[Confirmation, ...]
    comparison: Comparison
    kernels: tuple[KernelRow, ...] = ()
    limits: MachineLimits | None = None
    precision: PrecisionChoice | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run: what was asked, what was spent, what came of it, where it lies, and what the machine can do. That
    of an operator has one task, no `artifact`, and compares its default schedule with the winner. `contention` is
    the share lost to other processes, of a typical trial or of the final comparison, whichever is larger.
    """

    run_id: str
    request: dict[str, str | int | float | None]
    trials: int
    elapsed: float
    comparison: Comparison
    tasks: tuple[KernelRow, ...]
    artifact: str
    records: str
    folder: str
    limits: MachineLimits | None = None
    contention: float = 0.0
    precision: PrecisionChoice | None = None

    @classmethod
    def of(
        cls,
        run_id: str,
        request: Mapping[str, str | int | float | None],
        spent: TuningSummary,
        compiled: CompiledResult,
        folder: Path,
    ) -> Self:
        """Put together what a run's stages returned; a task of `spent` that has no winner is not used."""
        rows = {row.task_key: _row(row, compiled, spent) for row in spent.rows}
        for kernel in compiled.kernels:
            row = rows.get(kernel.task_key, kernel)
            # What was built counts: the program of a winner may have failed to build.
            is_chosen = (kernel.origin, kernel.record_id) == (row.origin, row.record_id)
            note = row.note if is_chosen else "; ".join(text for text in (kernel.note, row.note) if text)
            known = replace(row, origin=kernel.origin, record_id=kernel.record_id, note=note)
            rows[kernel.task_key] = replace(known, tunable=kernel.tunable)
        return cls(
            run_id=run_id,
            request=dict(request),
            trials=spent.trials,
            elapsed=spent.elapsed,
            comparison=compiled.comparison,
            tasks=tuple(rows.values()),
            artifact=str(compiled.artifact),
            records=f"{request.get('store') or request['home']}/records",
            folder=str(folder),
            limits=compiled.limits,
            contention=max(spent.contention, compiled.comparison.contention or 0.0),
            precision=compiled.precision,
        )

    @classmethod
    def of_operator(
        cls,
        run_id: str,
        request: Mapping[str, str | int | float | None],
        spent: TuningSummary,
        winner: Confirmation,
        folder: Path,
    ) -> Self:
        """Put together what tuning one operator returned."""
        times = ("untuned", winner.default_seconds), ("tuned", winner.seconds)
        comparison = Comparison("", tuple(Contender(name, seconds, None) for name, seconds in times))
        compiled = CompiledResult(Path(), (winner,), comparison)
        return replace(cls.of(run_id, request, spent, compiled, folder), artifact="")

    @property
    def page(self) -> Path:
        """Where the page about the run is."""
        return Path(self.folder) / "report.html"

    @property
    def coverage(self) -> CoverageReport:
        """The origins of the programs of all kernels that are used."""
        return CoverageReport.of([row for row in self.tasks if row.used])

    @property
    def tuned(self) -> list[KernelRow]:
        """The kernels that are worth tuning, and other ways to compute them."""
        return [row for row in self.tasks if row.tunable]

    @property
    def files(self) -> tuple[Path, ...]:
        """What the run has made: the compiled network, if any, and what `write` writes."""
        written = (Path(self.folder) / name for name in ("report.json", "report.md"))
        return (*([Path(self.artifact)] if self.artifact else []), *written)

    @property
    def is_right(self) -> bool:
        """Whether the compiled network computes what it should."""
        return self.comparison.is_right

    @property
    def title(self) -> str:
        """The network, and what it runs on."""
        target = self.request.get("target")
        on_threads = not target or Target(str(target)).traits.uses_threads
        device = (
            count(int(self.request["threads"] or 0), "thread") if on_threads else self.request.get("device", target)
        )
        if self.comparison.instances > 1:
            device = f"{self.comparison.instances} instances of {device}"
        return f"{self.request['network']} on {device}"

    @property
    def heading(self) -> str:
        """What the times of the comparison are."""
        return "latency" if self.comparison.instances == 1 else "time per inference"

    @property
    def default_seconds(self) -> float:
        """Latency of the untuned network or operator."""
        return self.comparison.seconds("untuned")

    @property
    def best_seconds(self) -> float:
        """Latency of the tuned network or operator."""
        return self.comparison.seconds("tuned")

    @property
    def speedup(self) -> float:
        """Latency untuned over latency tuned."""
        return self.default_seconds / self.best_seconds

    def summary(self) -> dict[str, str | int | float | bool]:
        """The figures that the ledger keeps."""
        made: dict[str, str | bool] = {"record": self.tasks[0].record_id}
        if self.artifact:
            made = {"is_right": self.is_right, "artifact": self.artifact}
        return {
            "trials": self.trials,
            "elapsed": round(self.elapsed, 3),
            "untuned_seconds": self.default_seconds,
            "tuned_seconds": self.best_seconds,
            **made,
        }

    def to_json(self) -> str:
        """Everything, as JSON text; a time that is unknown is null."""
        shares = [asdict(share) for share in self.coverage.shares]
        told = {"speedup": self.speedup, "is_right": self.is_right, "coverage": {"shares": shares}}
        return json.dumps(finite({**asdict(self), **told, "tasks": [row.to_json() for row in self.tasks]}), indent=2)

    def markdown(self) -> str:
        """Everything, for people."""
        noun = "network" if self.artifact else "operator"
        lines = [
            f"# {self.title}",
            "",
            *([f"**{warning}**", ""] if (warning := busy_warning(self.contention)) else []),
            f"{self.trials} trials in {self.elapsed:.0f} s of tuning made the {noun} {self.speedup:.2f} times as fast "
            "as untuned.",
            "",
            *(self._comparison_lines() if self.artifact else []),
            *(f"| {' | '.join(row)} |" for row in (KERNEL_HEADINGS, _SIDES, *self.kernel_table())),
            "",
            *([f"Compiled network: `{self.artifact}`"] if self.artifact else []),
            f"Records: `{self.records}`",
            *([f"Report: `{self.page}`"] if self.artifact else []),
            "",
        ]
        return "\n".join(lines)

    def kernel_table(self, headings: Sequence[str] = KERNEL_HEADINGS) -> list[tuple[str, ...]]:
        """The kernels that are worth tuning as a table, those that take most of the network's time first."""
        return kernel_table(self.tuned, headings)

    def _comparison_lines(self) -> list[str]:
        """The ways to run the network, and the origins of its programs."""
        return [
            f"| network | {self.heading} | error of the outputs |",
            "|---|---:|---:|",
            *(
                f"| {each.name} | {milliseconds(each.seconds)} ms | {_error(each.error)} |"
                for each in self.comparison.contenders
            ),
            "",
            f"Errors are the largest difference from {self.comparison.reference}, relative to its largest output; "
            f"{'all are' if self.is_right else 'NOT all are'} within {self.comparison.tolerance:g}.",
            *([self.comparison.note] if self.comparison.note else []),
            "",
            *([f"{choice.text()[:1].upper()}{choice.text()[1:]}."] if (choice := self.precision) else []),
            f"The network is {self.coverage}.",
            *([f"{fallen[:1].upper()}{fallen[1:]}."] if (fallen := self.coverage.fallback_text()) else []),
            "",
        ]

    def write(self) -> Path:
        """Put `report.md` and `report.json` into the run's folder and return that folder."""
        folder = Path(self.folder)
        write_text_atomically(folder / "report.md", self.markdown())
        write_text_atomically(folder / "report.json", self.to_json())
        return folder


def _row(row: KernelRow, compiled: CompiledResult, spent: TuningSummary) -> KernelRow:
    """`row`, of a task of the run, with the program that the compiled network uses."""
    by_key = {winner.task.workload_key: winner for winner in compiled.winners}
    winner = by_key.get(row.task_key)
    program = None if winner is None or winner.is_default else winner.program
    reasons = [*([row.stop_reason] if row.stop_reason else []), *row.failed_rules]
    if winner is None or not winner.used:
        measured = winner is not None or math.isfinite(row.best_seconds)
        layer = (other for other in spent.rows if row.layer and other.layer == row.layer)
        winners = (task.name for task in layer if (known := by_key.get(task.task_key)) and known.used)
        rival = next(winners, "another way to compute it")
        reasons.append(f"{rival} computes the same faster" if measured else f"not measured; {rival} is used")
    elif program is None:
        why = "the fastest tried" if len(winner.programs) > 1 else "no time was left to try a program"
        reasons.append(winner.why or why)
    rejected = [f"rejected {text}" for text in winner.rejected] if winner else []
    tuned = ProgramOrigin.DEFAULT if program is None else ORIGINS.get(program.mutation, ProgramOrigin.RECORD)
    return replace(
        row,
        default_seconds=winner.default_seconds if winner else row.default_seconds,
        best_seconds=winner.seconds if winner else row.best_seconds,
        origin=tuned,
        record_id=program.record_id if program else "",
        note="; ".join(dict.fromkeys(reasons + rejected)),
        used=winner is not None and winner.used,
    )


def _error(error: float | None) -> str:
    return "reference" if error is None else f"{error:.1e}"
