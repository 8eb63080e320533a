"""Prefect tasks that open runs, store rounds and find records.

When `store` returns, the round is durable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.measure.record import MeasureRecord
from retune.compiler.model.features import FEATURE_VERSION
from retune.compiler.schedule.task import SearchTask
from retune.storage.artifacts import ArtifactStore, content_key
from retune.storage.checkpoints import CheckpointStore
from retune.storage.compaction import Compaction, Retention, compact
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import Run, RunInfo, RunLedger
from retune.storage.store_url import Location, is_remote

# Records keep microseconds, ids (ULIDs) milliseconds.
_MOMENT = 1e-3
"""More than the times of records and training data are rounded by, in seconds."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What the store knows when a run begins: the run's own records, those of earlier runs by task key, and the best
    record of every other task.
    """

    own: tuple[MeasureRecord, ...]
    history: dict[str, tuple[MeasureRecord, ...]]
    foreign: tuple[MeasureRecord, ...] = ()

    @property
    def programs(self) -> int:
        """How many programs earlier runs have measured."""
        return sum(len(records) for records in self.history.values())


@task(name="open-run", task_run_name="open-run", cache_policy=NO_CACHE)
def open_run(home: Location, fingerprint: str, describe: Mapping[str, object]) -> Run:
    """Own the unfinished run with this fingerprint, or begin a new run."""
    return RunLedger(home).open_or_resume(fingerprint, describe)


@task(name="recall", task_run_name="recall", cache_policy=NO_CACHE)
def recall(run_id: str, home: Location, keys: Sequence[str], target: str, device: str, threads: int) -> RunHistory:
    """The records that a run starts from: its own, those that other runs had stored for the same tasks when it began,
    and the best records of other tasks.
    """
    records = ParquetRecordStore(home)
    measured = {key: records.records(task_key=key, target=target, device=device, threads=threads) for key in keys}
    best = [record for key, record in records.best_per_task(target, device, threads).items() if key not in measured]
    own_rows = (record for rows in measured.values() for record in rows if record.run_id == run_id)
    own = tuple(record for record in own_rows if not record.is_unsearched)
    others = [*best, *(record for rows in measured.values() for record in rows if record.run_id != run_id)]
    checkpoints = CheckpointStore(home, target, device, threads, FEATURE_VERSION).latest
    horizon = _horizon(home, run_id, [checkpoints, *(record.timestamp for record in others)])
    history = {
        key: tuple(record for record in rows if record.run_id != run_id and record.timestamp < horizon)
        for key, rows in measured.items()
    }
    return RunHistory(own, history, tuple(record for record in best if record.timestamp < horizon))


def _horizon(home: Location, run_id: str, stored: Sequence[float]) -> float:
    """The moment before which everything counts as stored when the run began, the same after every resume.

    That is when it began, by the clock; or later, where the clock was set back after something had been stored.
    """
    ledger = RunLedger(home)
    run = ledger.get(run_id)
    # A run of an earlier version, which noted no horizon.
    if run.resumed and run.horizon is None:
        return run.started
    return float(ledger.set_once(run_id, "horizon", max([run.started, *(moment + _MOMENT for moment in stored)])))


@task(name="store", task_run_name="store-{name}", retries=2, retry_delay_seconds=1, cache_policy=NO_CACHE)
def store(name: str, home: Location, records: Sequence[MeasureRecord]) -> None:
    """Append one round; when this returns, the round survives anything."""
    ParquetRecordStore(home).append(records)


@task(name="best-records", task_run_name="best-records", cache_policy=NO_CACHE)
def best_records(
    home: Location, tasks: Sequence[SearchTask], target: str, device: str, threads: int, top: int
) -> dict[str, tuple[MeasureRecord, ...]]:
    """The `top` fastest successful records of every task that has any, by its key, fastest first; a record only looked
    at, too slow for repeats, comes after all others. The fastest records at each shape of a task follow.
    """
    records = ParquetRecordStore(home)
    best: dict[str, tuple[MeasureRecord, ...]] = {}
    for own in tasks:
        candidates = records.records(task_key=own.workload_key, target=target, device=device, threads=threads)
        fitted = [row for record in candidates if record.costs and (row := record.over(own.sample)) is not None]
        ranked = sorted(fitted, key=lambda record: (record.censored, record.seconds))
        chosen = {record.record_id: record for record in ranked[:top]}
        for number in range(len(own.shapes) if ranked else 0):
            fastest = min(ranked, key=lambda record: min(record.shapes[number].costs))
            chosen.setdefault(fastest.record_id, fastest)
        if chosen:
            best[own.workload_key] = tuple(chosen.values())
    return best


@task(name="best-of-every-task", cache_policy=NO_CACHE)
def best_of_every_task(home: Location, target: str, device: str, threads: int) -> tuple[MeasureRecord, ...]:
    """The best record of every task, of this network or another: each may help a similar task that has none."""
    return tuple(ParquetRecordStore(home).best_per_task(target, device, threads).values())


@task(name="complete-run", task_run_name="complete-run", cache_policy=NO_CACHE)
def complete_run(run_id: str, home: Location, summary: Mapping[str, Any], paths: Sequence[Path] = ()) -> RunInfo:
    """Mark a run as finished: the next command like it begins a new run. Where the store is a URL, the files that the
    run has made go there as well, and the summary has their key as `artifact`.
    """
    if is_remote(home):
        # By content: a run that is finished twice, as after a lost answer, stores its files once.
        files = {path.name: path.read_bytes() for path in paths}
        summary = {**summary, "artifact": content_key(files)}
        ArtifactStore(home).put(summary["artifact"], files)
    return RunLedger(home).complete(run_id, summary)


@task(name="compact", task_run_name="compact", cache_policy=NO_CACHE)
def compact_store(home: str, retention: Retention | None = None) -> Compaction:
    """Join the small files of every task; drop what a retention does not keep."""
    return compact(home, retention=retention)
