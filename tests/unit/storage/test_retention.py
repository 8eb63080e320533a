"""What need not stay goes; the best, the young, and what a run is resumed from never do."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core.errors import OptionError
from retune.storage.compaction import Compaction, Retention, compact
from retune.storage.parquet import ParquetRecordStore
from retune.storage.query import run_query
from retune.storage.runs import RunLedger
from tests.support.record_samples import failed, part_paths, timed
from tests.support.store_writers import ROOT, start_writer

DAY = 86_400.0
NOW = 1.75e9 + 100 * DAY


def fill(root: Path) -> None:
    """Ten trials of two tasks in two places, one every ten days, the fastest in the middle; every fifth failed."""
    for age in reversed(range(10)):
        for task, device in (("w0", "here"), ("w0", "there"), ("w1", "here")):
            record = failed(task) if age % 5 == 4 else timed(task, 1e-3 * (1 + abs(age - 5)))
            moment = NOW - age * 10 * DAY - 1
            ParquetRecordStore(root).append([replace(record, device=device, timestamp=moment)])


def kept(root: Path, task: str = "w0", device: str = "here") -> list[int]:
    """How old the records of a task are that are left, in tens of days."""
    found = ParquetRecordStore(root).records(task, device=device)
    return sorted(round((NOW - record.timestamp) / DAY / 10) for record in found)


def test_the_best_and_the_young_stay(tmp_path: Path) -> None:
    fill(tmp_path)
    best = ParquetRecordStore(tmp_path).best_per_task()
    done = compact(tmp_path, retention=Retention(best=3, days=15), now=NOW)
    assert done == Compaction(30, 3, 15, 15)
    for task, device in (("w0", "here"), ("w0", "there"), ("w1", "here")):
        assert kept(tmp_path, task, device) == [0, 1, 5, 6, 7]
    assert ParquetRecordStore(tmp_path).best_per_task() == best
    assert compact(tmp_path, retention=Retention(best=3, days=15), now=NOW) == Compaction(0, 0, 0)
    compact(tmp_path, retention=Retention(), now=NOW)
    assert kept(tmp_path) == [5]
    assert ParquetRecordStore(tmp_path).best_per_task() == best


def test_a_trial_that_was_only_looked_at_is_not_among_the_best_but_the_fastest_always_stays(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    looked, slow, slower = timed("w0", 1e-3, censored=True), timed("w0", 2e-3), timed("w0", 3e-3)
    store.append([slower, looked, slow])
    compact(tmp_path, retention=Retention(best=1), now=NOW)
    assert {record.record_id for record in store.records()} == {looked.record_id, slow.record_id}


def test_the_newest_confirmation_stays_and_takes_no_trial_s_place(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    fast, slow = timed("w0", 2e-3, timestamp=1.0), timed("w0", 3e-3, timestamp=2.0)
    first, last = (timed("w0", 4e-3 + n, mutation="confirmed, tile", timestamp=3.0 + n) for n in range(2))
    store.append([fast, slow, first, last])
    compact(tmp_path, retention=Retention(best=1), now=NOW)
    assert [one.record_id for one in store.records(confirmations=True)] == [fast.record_id, last.record_id]


def test_what_a_run_is_resumed_from_stays(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("going on", {}) as going, ledger.open_or_resume("done", {}) as done:
        ledger.complete(done.run_id, {})
        for number in range(5):
            ParquetRecordStore(tmp_path).append(
                [timed("w0", 1.0 + number, run_id=run.run_id, timestamp=number) for run in (going, done)]
            )
    compact(tmp_path, retention=Retention(best=1), now=NOW)
    left = ParquetRecordStore(tmp_path).records()
    assert [record.run_id for record in left].count(going.run_id) == 5
    assert len(left) <= 6
    ledger.complete(going.run_id, {})
    compact(tmp_path, retention=Retention(best=1), now=NOW)
    assert len(ParquetRecordStore(tmp_path).records()) == 1


def test_tasks_without_a_success_and_old_lose_everything(tmp_path: Path) -> None:
    ParquetRecordStore(tmp_path).append([failed("w0", timestamp=1.0), failed("w0", timestamp=NOW)])
    compact(tmp_path, retention=Retention(days=1), now=NOW)
    assert [record.timestamp for record in ParquetRecordStore(tmp_path).records()] == [NOW]
    compact(tmp_path, retention=Retention(), now=NOW + DAY)
    assert part_paths(tmp_path) == []


@pytest.mark.parametrize(("best", "days"), [(0, 1.0), (-1, 1.0), (1, -0.5), (1, float("nan"))])
def test_a_retention_that_makes_no_sense_is_refused(best: int, days: float) -> None:
    with pytest.raises(OptionError):
        Retention(best, days)


COMPACTOR = """
import sys, time
from retune.storage.compaction import compact
while True:
    compact(sys.argv[1], least_parts=2)
    time.sleep(0.02)
"""


@pytest.mark.long
def test_readers_and_sql_never_miss_a_record_while_processes_write_and_compact(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    writers = [start_writer(tmp_path, f"writer{number}", 0) for number in range(2)]
    while not part_paths(tmp_path):
        time.sleep(0.01)
    compactors = [subprocess.Popen((sys.executable, "-c", COMPACTOR, str(tmp_path)), cwd=ROOT) for _ in range(2)]
    processes: list[subprocess.Popen[Any]] = [*writers, *compactors]
    seen = 0
    try:
        for _ in range(4):
            reader = ParquetRecordStore(tmp_path)
            ((rows, each),) = run_query(tmp_path, "SELECT count(*), count(DISTINCT record_id) FROM records")[1]
            assert seen <= rows == each
            count = len(reader.records())
            assert rows <= count
            assert count % 8 == 0
            assert reader.table(columns=["record_id"]).num_rows >= count
            best = reader.best("shared")
            assert best is not None
            assert best.seconds == 1e-3
            seen = count
        assert [process.poll() for process in processes] == [None] * 4
    finally:
        for process in processes:
            process.kill()
            process.wait()
    acknowledged = set()
    for writer in writers:
        assert writer.stdout is not None
        acknowledged |= {name for line in writer.stdout if line.endswith("\n") for name in line.split()}
        writer.stdout.close()
    assert acknowledged <= {record.record_id for record in ParquetRecordStore(tmp_path).records()}
    assert len(acknowledged) > 64
