"""Everything that a page about a run shows, as plain data, read from a state folder.

An interrupted run has facts too, as far as it came; what was never measured is infinite or missing, not 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retune.compiler.driver.coverage import CoverageReport
from retune.compiler.driver.limits import MachineLimits
from retune.compiler.driver.report import TaskOutcome
from retune.compiler.driver.tuning import cause_of, contention_of, typical
from retune.compiler.errors import OptionError
from retune.compiler.executor.network import Coverage
from retune.compiler.measure.record import MeasureRecord, MeasureStatus
from retune.storage.documents import RunReport
from retune.storage.parquet import ParquetRecordStore
from retune.storage.reports import read_report
from retune.storage.rounds import Field, rounds_of
from retune.storage.runs import RunInfo, RunLedger
from retune.storage.store_url import Place


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a task: seconds, infinite for a failure, and where the program came from, or why it failed."""

    seconds: float
    origin: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of the network, or one that was tuned in place of another and lost; times are seconds per call, those
    of the confirmation at the end, but for `search_seconds`, the best of the search. `share` is its part of the time
    of all kernels.
    """

    name: str
    task_key: str
    weight: int
    flops: float
    moved_bytes: int
    trials: int
    default_seconds: float
    best_seconds: float
    search_seconds: float
    share: float
    served_by: str
    note: str
    is_used: bool = True

    @property
    def gflops(self) -> float:
        """Speed of the program that serves, in 10^9 operations a second; 0 where it is not known."""
        return self.flops / self.best_seconds / 1e9 if math.isfinite(self.best_seconds) and self.best_seconds else 0.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run. `latencies` are seconds by contender, `course` the estimated latency by seconds spent, `trials` by task
    key in the order in which they were made, `failures` how many of them failed. `missing_rounds` have stored records,
    but no line of their own that can be read.
    """

    info: RunInfo
    report: RunReport
    latencies: Mapping[str, float]
    errors: Mapping[str, float | None]
    kernels: tuple[Kernel, ...]
    limits: MachineLimits | None
    coverage: CoverageReport
    course: tuple[tuple[float, float], ...]
    trials: Mapping[str, tuple[Trial, ...]]
    failures: int
    versions: str
    contention: float
    missing_rounds: int

    @property
    def trial_count(self) -> int:
        """How many programs were measured."""
        return sum(map(len, self.trials.values()))


def find_run(home: Place, wanted: str) -> RunInfo:
    """The run with this id, or the only one whose id begins or ends like this; "latest" is the newest one that has
    measured something.

    Raises: OptionError when there is none, or more than one.
    """
    runs = RunLedger(home).list()
    if not runs:
        raise OptionError(f"there is no run in {home}; `retune tune` makes one, --store names another state folder")
    if wanted == "latest":  # one that was stopped before its first round has nothing to show
        return next((run for run in reversed(runs) if run.is_complete or rounds_of(home, run.run_id)), runs[-1])
    text = wanted.upper()
    found = [run for run in runs if run.run_id == text] or [
        run for run in runs if text and (run.run_id.startswith(text) or run.run_id.endswith(text))
    ]
    if len(found) != 1:
        many = f"{len(found)} runs are called like {wanted!r}" if found else f"there is no run {wanted!r} in {home}"
        raise OptionError(f"{many}; `retune runs` lists them, and `latest` is the newest")
    return found[0]


def facts_of(home: Place, info: RunInfo, folder: Path | None = None) -> RunFacts:
    """Everything about a run; `folder` is where its report is, when that is not below `home`. Raises: StoreError."""
    report = read_report(home, info, folder)
    rounds = rounds_of(home, info.run_id)
    keys = dict.fromkeys(str(row["task_key"]) for row in (*rounds, *report.get("tasks", ())) if row.get("task_key"))
    store = ParquetRecordStore(home)
    # without a line about a round and without a report every task is searched, in case they were lost
    found = (record for key in keys or (None,) for record in store.records(task_key=key, run_id=info.run_id))
    records = [record for record in found if not record.is_guess]
    # By round first: the clock may have been set back in the middle of a run.
    records.sort(key=lambda record: (record.round, record.timestamp, record.record_id))
    keys = dict.fromkeys(record.task_key for record in records)
    contenders = report.get("comparison", {}).get("contenders", [])
    return RunFacts(
        info=info,
        report=report,
        latencies={one["name"]: _seconds(one["seconds"]) for one in contenders},
        errors={one["name"]: one["error"] for one in contenders},
        kernels=_kernels(report, records, is_complete=info.is_complete),
        limits=MachineLimits(**limits) if (limits := report.get("limits")) else None,
        coverage=CoverageReport.of([Coverage(**one) for one in report.get("coverage", {}).get("kernels", ())]),
        course=tuple(_course(rounds)),
        trials={key: tuple(_trial(one) for one in records if one.task_key == key) for key in keys},
        failures=sum(record.status is not MeasureStatus.OK for record in records),
        versions=", ".join(sorted({f"Retune {r.engine_version}, {r.llvm_version}" for r in records})),
        contention=report.get("contention", typical(contention_of(records))),
        missing_rounds=len({record.round for record in records} - {row["round"] for row in rounds}),
    )


def moment(seconds: float | None) -> str:
    """A moment for people, in UTC."""
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _course(rounds: Sequence[Mapping[str, Field]]) -> Iterator[tuple[float, float]]:
    """Seconds spent and estimated latency after every round that has both."""
    for row in rounds:
        elapsed, latency = row.get("elapsed"), row.get("latency")
        if isinstance(elapsed, int | float) and isinstance(latency, int | float):
            yield float(elapsed), float(latency)


def _kernels(report: RunReport, records: Sequence[MeasureRecord], *, is_complete: bool) -> tuple[Kernel, ...]:
    """The kernels as reported; of a run without a report, the tasks as far as they were measured."""
    rows = report.get("tasks") or _unreported(records, is_complete=is_complete)
    taken = [row["weight"] * (row["best_seconds"] or 0.0) if row.get("used", True) else 0.0 for row in rows]
    whole = sum(taken) or 1.0
    keys = {record.record_id: record.task_key for record in records}
    names = {record.task_name: record.task_key for record in records}
    fastest: dict[str, float] = {}
    for record in records:
        fastest[record.task_key] = min(record.seconds, fastest.get(record.task_key, math.inf))
    return tuple(
        Kernel(
            name=row["name"],
            task_key=_key_of(row, keys, names),
            weight=row["weight"],
            flops=row["flops"],
            moved_bytes=row.get("moved_bytes", 0),
            trials=row["trials"],
            default_seconds=_seconds(row["default_seconds"]),
            best_seconds=_seconds(row["best_seconds"]),
            share=mine / whole,
            search_seconds=fastest.get(_key_of(row, keys, names), math.inf),
            served_by=TaskOutcome(**{"transferred": False, **row}).served_by,
            note=row["note"],
            is_used=row.get("used", True),
        )
        for row, mine in zip(rows, taken, strict=True)
    )


def _key_of(row: Mapping[str, Any], keys: Mapping[str, str], names: Mapping[str, str]) -> str:
    """The task of a reported kernel; older reports name its record only."""
    return row.get("task_key") or keys.get(row["record_id"]) or names.get(row["name"], "")


def _unreported(records: Sequence[MeasureRecord], *, is_complete: bool) -> list[dict[str, Any]]:
    note = "its report is lost" if is_complete else "the run has not come to its end; nothing serves yet"
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys(record.task_key for record in records):
        mine = [record for record in records if record.task_key == key]
        best = min(mine, key=lambda record: record.seconds)
        untuned = [record.seconds for record in mine if record.mutation == "default"]
        is_known = math.isfinite(best.seconds)
        rows.append(
            {
                "name": best.task_name,
                "task_key": key,
                "weight": 1,
                "flops": 0.0,
                "trials": len(mine),
                "default_seconds": min(untuned, default=None),
                "best_seconds": best.seconds if is_known else None,
                "record_id": best.record_id if is_known else "",
                "guessed": False,
                "transferred": False,
                "note": note,
            }
        )
    return rows


def _trial(record: MeasureRecord) -> Trial:
    if record.status is not MeasureStatus.OK:
        return Trial(math.inf, f"{record.status.name}: {cause_of(record.error)}")
    return Trial(record.seconds, record.mutation or "sampled")


def _seconds(value: float | None) -> float:
    return math.inf if value is None else float(value)
