"""The content of a run's report page as plain data, read from a state folder.

An interrupted run has the facts of its finished rounds; what was never measured is infinite or missing, not 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from retune.compiler.core.errors import OptionError
from retune.compiler.measure.record import DEFAULT_SCHEDULE, MeasureRecord, MeasureStatus
from retune.compiler.runtime.kernel_row import CoverageReport, KernelRow, ProgramOrigin
from retune.compiler.tune.limits import MachineLimits
from retune.compiler.tune.precision.request import PrecisionChoice
from retune.compiler.tune.tuning import contention_of, typical
from retune.storage.documents import RunReport
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RoundField, RunInfo, RunLedger, read_report, rounds_of
from retune.storage.store_url import Location


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of one run.

    `latencies` are seconds by contender, `progress` pairs seconds spent with the estimated latency, `trials` are the
    records by task key, oldest first, and `failures` is how many of them failed. `missing_rounds` is the number of
    rounds with stored records whose own line is lost or damaged.
    """

    info: RunInfo
    report: RunReport
    latencies: Mapping[str, float]
    errors: Mapping[str, float | None]
    kernels: tuple[KernelRow, ...]
    limits: MachineLimits | None
    progress: tuple[tuple[float, float], ...]
    trials: Mapping[str, tuple[MeasureRecord, ...]]
    failures: int
    versions: str
    contention: float
    missing_rounds: int

    @property
    def precision(self) -> PrecisionChoice | None:
        """The precisions that the run chose; None in float32, and where they cannot be read."""
        try:
            return PrecisionChoice.from_json(self.info.precision) if self.info.precision else None
        except (TypeError, ValueError, KeyError):  # of another version
            return None

    @property
    def coverage(self) -> CoverageReport:
        """The sources of the programs of the kernels that are used."""
        return CoverageReport.of([row for row in self.kernels if row.used])

    @property
    def tuned(self) -> list[KernelRow]:
        """The kernels that are worth tuning, those that take most of the network's time first."""
        return sorted((row for row in self.kernels if row.tunable), key=lambda row: -row.weighted_seconds)

    @property
    def trial_count(self) -> int:
        """How many programs were measured."""
        return sum(map(len, self.trials.values()))


def find_run(home: Location, wanted: str) -> RunInfo:
    """The run with this id, or the only run whose id begins or ends with `wanted`; "latest" is the newest
    that has measured something.

    Raises: OptionError when there is none, or more than one.
    """
    runs = RunLedger(home).list()
    if not runs:
        raise OptionError(f"there is no run in {home}; `retune tune` makes one, --store names another state folder")
    if wanted == "latest":  # a run stopped before its first round has nothing to show
        return next((run for run in reversed(runs) if run.is_complete or rounds_of(home, run.run_id)), runs[-1])
    text = wanted.upper()
    matches = [run for run in runs if run.run_id == text] or [
        run for run in runs if text and (run.run_id.startswith(text) or run.run_id.endswith(text))
    ]
    if len(matches) != 1:
        many = f"{len(matches)} runs are called like {wanted!r}" if matches else f"there is no run {wanted!r} in {home}"
        raise OptionError(f"{many}; `retune runs` lists them, and `latest` is the newest")
    return matches[0]


def facts_of(home: Location, info: RunInfo, folder: Path | None = None) -> RunFacts:
    """Everything about a run; `folder` is where its report is, when that is not below `home`. Raises: StoreError."""
    report = read_report(home, info, folder)
    rounds = rounds_of(home, info.run_id)
    reported = (*(str(row.get("task_key") or "") for row in rounds), *(row.task_key for row in report.get("tasks", ())))
    keys = dict.fromkeys(filter(None, reported))
    store = ParquetRecordStore(home)
    # If both the lines of rounds and the report are lost, the records of all tasks are searched for the run's.
    recorded = (record for key in keys or (None,) for record in store.records(task_key=key, run_id=info.run_id))
    records = [record for record in recorded if not record.is_unsearched]
    # By round first: the clock may have been set back in the middle of a run.
    records.sort(key=lambda record: (record.round, record.timestamp, record.record_id))
    keys = dict.fromkeys(record.task_key for record in records)
    contenders = report.get("comparison", {}).get("contenders", [])
    return RunFacts(
        info=info,
        report=report,
        latencies={contender["name"]: _seconds(contender["seconds"]) for contender in contenders},
        errors={contender["name"]: contender["error"] for contender in contenders},
        kernels=_kernels(report, records, is_complete=info.is_complete),
        limits=MachineLimits(**limits) if (limits := report.get("limits")) else None,
        progress=tuple(_progress(rounds)),
        trials={key: tuple(record for record in records if record.task_key == key) for key in keys},
        failures=sum(record.status is not MeasureStatus.OK for record in records),
        versions=", ".join(sorted({f"Retune {r.engine_version}, {r.llvm_version}" for r in records})),
        contention=report.get("contention", typical(contention_of(records))),
        missing_rounds=len({record.round for record in records} - {row["round"] for row in rounds}),
    )


def moment(seconds: float | None) -> str:
    """`seconds` since the epoch as a readable time in UTC."""
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _progress(rounds: Sequence[Mapping[str, RoundField]]) -> Iterator[tuple[float, float]]:
    """Seconds spent and estimated latency after every round that has both."""
    for row in rounds:
        elapsed, latency = row.get("elapsed"), row.get("latency")
        if isinstance(elapsed, int | float) and isinstance(latency, int | float):
            yield float(elapsed), float(latency)


def _kernels(report: RunReport, records: Sequence[MeasureRecord], *, is_complete: bool) -> tuple[KernelRow, ...]:
    """The kernels as reported; of a run without a report, the tasks as far as they were measured."""
    if report.get("tasks"):
        return tuple(report["tasks"])
    note = "its report is lost" if is_complete else "the run has not come to its end; nothing serves yet"
    rows = []
    for key in dict.fromkeys(record.task_key for record in records):
        trials = [record for record in records if record.task_key == key]
        best = min(trials, key=lambda record: record.seconds)
        untuned = min((record.seconds for record in trials if record.mutation == DEFAULT_SCHEDULE), default=math.inf)
        is_known = math.isfinite(best.seconds)
        row = KernelRow(
            best.task_name, key, trials=len(trials), default_seconds=untuned, best_seconds=best.seconds, note=note
        )
        rows.append(replace(row, origin=ProgramOrigin.RECORD, record_id=best.record_id) if is_known else row)
    return tuple(rows)


def _seconds(value: float | None) -> float:
    return math.inf if value is None else float(value)
