"""In: what tuning one operator found. Out: the same as plain data and as Markdown.

Always: a time that is unknown says so.
"""

import json
from dataclasses import asdict, dataclass
from typing import Self

from retune.compiler.driver.tuning import TuningSummary
from retune.compiler.driver.winners import Confirmation
from retune.compiler.runtime.readable import finite, milliseconds


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """A tuned operator: what was asked, what was spent, what serves it. Times are seconds per call, infinite where the
    program failed; `record_id` is empty where no record is better than the untuned program.
    """

    run_id: str
    operator: str
    target: str
    device: str
    threads: int
    trials: int
    elapsed: float
    flops: float
    default_seconds: float
    best_seconds: float
    record_id: str
    steps: str
    rejected: tuple[str, ...]
    records: str

    @classmethod
    def of(
        cls, run_id: str, described: dict[str, str | int | float | None], spent: TuningSummary, winner: Confirmation
    ) -> Self:
        """Put together what a run's stages returned."""
        (row,) = spent.rows
        return cls(
            run_id=run_id,
            operator=str(described["network"]),
            target=str(described["target"]),
            device=str(described["device"]),
            threads=int(described["threads"] or 1),
            trials=spent.trials,
            elapsed=spent.elapsed,
            flops=row.flops,
            default_seconds=winner.default_seconds,
            best_seconds=winner.seconds,
            record_id=winner.program.record_id if winner.program else "",
            steps=winner.program.steps if winner.program else "",
            rejected=winner.rejected,
            records=f"{described.get('store') or described['home']}/records",
        )

    @property
    def speedup(self) -> float:
        """Seconds of the untuned program over those of the best."""
        return self.default_seconds / self.best_seconds

    @property
    def gflops(self) -> float:
        """Speed of the best program in 10^9 operations per second; 0 when its operations cannot be counted."""
        return max(0.0, self.flops) / self.best_seconds / 1e9

    def summary(self) -> dict[str, str | int | float | bool]:
        """The figures that the ledger keeps."""
        return {
            "trials": self.trials,
            "elapsed": round(self.elapsed, 3),
            "untuned_seconds": self.default_seconds,
            "tuned_seconds": self.best_seconds,
            "record": self.record_id,
        }

    def to_json(self) -> str:
        """Everything, as JSON text; a time that is unknown is null."""
        fields = {**asdict(self), "gflops": self.gflops, "speedup": self.speedup}
        return json.dumps(finite(fields), indent=2)

    def markdown(self) -> str:
        """Everything but the steps, for people."""
        served = self.record_id or ("a first guess of the search" if self.steps else "the untuned program")
        return "\n".join(
            [
                f"# {self.operator} on {self.threads} threads",
                "",
                f"{self.trials} trials in {self.elapsed:.0f} s of tuning made it {self.speedup:.2f} times as fast as "
                "untuned.",
                "",
                "| untuned ms | best ms | GFLOP/s | served by |",
                "|---:|---:|---:|---|",
                f"| {milliseconds(self.default_seconds)} | {milliseconds(self.best_seconds)} | {self.gflops:.1f} "
                f"| {served} |",
                "",
                *(f"Rejected: {text}" for text in self.rejected),
                f"Machine: {self.device}, target `{self.target}`",
                f"Records: `{self.records}`",
                "",
            ]
        )
