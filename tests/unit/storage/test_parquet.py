"""Tests of Parquet stores with files in every bad state: readers see complete records. Real files and processes."""

import itertools
import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retune.compiler.core.errors import CorruptRecordError, SchemaError, StoreError
from retune.compiler.measure.record import SCHEMA_VERSION
from retune.storage import parquet
from retune.storage.blob_store import BlobStore, LocalBlobStore
from retune.storage.compaction import compact
from retune.storage.layout import part_folder
from retune.storage.parquet import ParquetRecordStore
from retune.storage.parts import read_part
from retune.storage.schema import SCHEMA, VERSION_KEY, canonical, to_table, upgrade
from tests.support.record_samples import CPU, failed, part_paths, timed
from tests.support.store_writers import start_writer


def stamp(path: Path, version: int) -> None:
    """Rewrite a file as if another version of Retune had written it."""
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: str(version)}), path)


@pytest.mark.long
def test_kill_9_loses_nothing_acknowledged_and_shows_nothing_partial(tmp_path: Path) -> None:
    for attempt in range(3):
        writer = start_writer(tmp_path, f"writer{attempt}", 0)
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline() for _ in range(3)]
        time.sleep(0.003 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += writer.stdout.readlines()
        writer.stdout.close()
        writer.wait()
        whole = [line for line in acknowledged if line.endswith("\n")]
        store = ParquetRecordStore(tmp_path)
        seen = {record.record_id for record in store.records(run_id=f"writer{attempt}")}
        assert seen >= {record_id for line in whole for record_id in line.split()}
        assert len(seen) % 8 == 0
        assert store.check().rows % 8 == 0


@pytest.mark.long
def test_many_writers_and_a_reader_need_no_lock(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path, f"writer{number}", 12) for number in range(3)]
    reader = ParquetRecordStore(tmp_path)
    seen = 0
    while any(writer.poll() is None for writer in writers):
        count = len(reader.records())
        assert count >= seen
        assert count % 8 == 0
        seen = count
        time.sleep(0.01)
    for writer in writers:
        printed, _ = writer.communicate()
        assert writer.returncode == 0
        assert len(printed.splitlines()) == 12
    assert len(reader.records()) == 3 * 12 * 8
    assert reader.check().temporaries == ()


def test_a_temporary_is_never_read(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 1e-3)])
    leftover = tmp_path / part_folder(CPU, "w0") / ".01ABC.tmp"
    leftover.write_bytes(b"half a fi")
    assert len(ParquetRecordStore(tmp_path).records()) == 1
    assert store.check().temporaries == (str(leftover),)


def test_an_empty_store_passes_the_check(tmp_path: Path) -> None:
    check = ParquetRecordStore(tmp_path / "none").check()
    assert (check.files, check.rows, check.temporaries) == (0, 0, ())


def test_a_failed_append_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 1e-3)])
    calls = []

    def full_after_one(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("retune.storage.files.os.fsync", full_after_one)
        with pytest.raises(StoreError, match="No space left"):
            store.append([timed("w0", 1e-3), timed("w0b", 1e-3)])
    for reader in (store, ParquetRecordStore(tmp_path)):
        assert len(reader.records()) == 1
        assert reader.check().temporaries == ()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text", "foreign"])
def test_a_corrupt_file_is_set_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 1e-3)])
    store.append([timed("w0", 5e-4)])
    bad = part_paths(tmp_path)[1]
    data = bad.read_bytes()
    foreign = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), foreign)
    middle = len(data) // 4
    bad.write_bytes(
        {
            "truncated": data[:-30],
            "flipped": data[:middle] + bytes(255 - byte for byte in data[middle : middle + 400]) + data[middle + 400 :],
            "empty": b"",
            "text": b"hello" * 100,
            "foreign": foreign.getvalue().to_pybytes(),
        }[damage]
    )
    reader = ParquetRecordStore(tmp_path)
    with pytest.raises(CorruptRecordError, match=bad.name):
        reader.check()
    with caplog.at_level(logging.WARNING):
        best = reader.best("w0")
        assert [record.seconds for record in reader.records()] == [1e-3]
    assert best is not None
    assert best.seconds == 1e-3
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert bad.name in warnings[0]
    assert not bad.exists()
    refuge = tmp_path / "quarantine" / bad.relative_to(tmp_path)
    assert refuge.exists()
    check = reader.check()
    assert (check.rows, check.quarantined) == (1, (str(refuge),))


def test_any_single_bit_of_damage_is_noticed(tmp_path: Path) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 1e-3), failed("w0")])
    (path,) = part_paths(tmp_path)
    good = path.read_bytes()
    for position in range(0, len(good), 37):
        damaged = bytearray(good)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=path.name):  # corrupt, or of a newer version
            read_part(LocalBlobStore(tmp_path), path.relative_to(tmp_path).as_posix())


def test_a_file_put_there_by_another_tool_is_read(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 1e-3)])
    (path,) = part_paths(tmp_path)
    path.rename(path.with_name("mine.parquet"))
    assert ParquetRecordStore(tmp_path).best("w0") == store.records()[0]


def test_a_file_in_the_wrong_folder_fails_the_check(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 1e-3), timed("w1", 1e-3)])
    first, second = part_paths(tmp_path)
    first.rename(second.parent / first.name)
    with pytest.raises(CorruptRecordError, match="another task"):
        store.check()


def test_a_newer_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 1e-3)])
    (path,) = part_paths(tmp_path)
    stamp(path, SCHEMA_VERSION + 1)
    store = ParquetRecordStore(tmp_path)
    for query in (store.records, store.best_per_task, store.check):
        with pytest.raises(SchemaError, match="upgrade Retune") as caught:
            query()
        assert path.name in str(caught.value)
        assert f"schema {SCHEMA_VERSION + 1}" in str(caught.value)
        assert path.exists()


def test_a_store_that_a_newer_version_wrote_is_refused_when_opened(tmp_path: Path) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 1e-3)])
    (tmp_path / "store.json").write_text(f'{{"schema_version": {SCHEMA_VERSION + 1}}}')
    with pytest.raises(SchemaError, match="upgrade Retune"):
        ParquetRecordStore(tmp_path)


def test_an_older_table_is_upgraded_step_by_step() -> None:
    table = to_table([canonical(timed("w0", 1e-3))])

    def restore_round(old: Any) -> Any:
        return old.append_column("round", pa.array([7] * old.num_rows, pa.int32()))

    def rename_backend(old: Any) -> Any:
        return old.rename_columns(["target" if name == "backend" else name for name in old.column_names])

    names = ["backend" if name == "target" else name for name in SCHEMA.names]
    oldest = table.rename_columns(names).drop_columns(["round"])
    steps = {1: restore_round, 2: rename_backend}
    upgraded = upgrade(oldest, 1, "old.parquet", steps, to=3)
    assert upgraded.schema.equals(SCHEMA)
    assert upgraded.column("round").to_pylist() == [7]
    with pytest.raises(SchemaError, match=r"old\.parquet has record schema 1"):
        upgrade(oldest, 1, "old.parquet", {2: rename_backend}, to=3)
    with pytest.raises(CorruptRecordError, match=r"old\.parquet does not fit"):
        upgrade(oldest, 3, "old.parquet", steps, to=3)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="not a folder"):
        ParquetRecordStore(tmp_path / "file")


def test_names_never_escape_their_folder(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path / "store")
    record = timed("../../w0", 1e-3, target="../../../etc/ -mcpu=x' OR 1=1", device="/")
    store.append([record])
    (path,) = part_paths(tmp_path / "store", record.target, record.task_key)
    assert path.parts[-4:-1][0] == "records"
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]
    assert store.records(record.task_key, record.target) == [record]


def test_repeated_reads_open_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 1e-3), failed("w1")])
    reader = ParquetRecordStore(tmp_path)
    first = reader.records(), reader.best_per_task()

    def refuse(_: LocalBlobStore, name: str) -> Sequence[object]:
        raise AssertionError(name)

    monkeypatch.setattr("retune.storage.parts.read_part", refuse)
    monkeypatch.setattr("retune.storage.parts.read_outline", refuse)
    assert (reader.records(), reader.best_per_task()) == first


def test_best_reads_only_the_winning_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ParquetRecordStore(tmp_path)
    for number in range(5):
        writer.append([timed("w0", 1e-3 * (5 - number)), failed("w0")])
    reader = ParquetRecordStore(tmp_path)
    opened: list[Path] = []

    def note(blobs: LocalBlobStore, name: str) -> object:
        opened.append(blobs.root / name)
        return read_part(blobs, name)

    monkeypatch.setattr("retune.storage.parts.read_part", note)
    best = reader.best("w0", target=CPU)
    assert best is not None
    assert best.seconds == 1e-3
    assert opened == [part_paths(tmp_path)[-1]]


def test_rows_of_the_first_version_are_read_as_what_they_were(tmp_path: Path) -> None:
    """Every timing was repeated then, and nobody looked at the load of the machine."""
    record = canonical(timed("w0", 1e-3, censored=True, contention=0.5))
    table = to_table([record]).drop_columns(["censored", "contention", "sizes", "weight"])
    folder = tmp_path / part_folder(record.target, record.task_key)
    folder.mkdir(parents=True)
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: "1"}), folder / "old.parquet")
    store = ParquetRecordStore(tmp_path)
    newer = timed("w0", 2e-3, censored=True, contention=0.25)
    store.append([newer])
    (old, new) = store.records()
    assert old == replace(record, censored=False, contention=None)
    assert (new.record_id, new.censored, new.contention) == (newer.record_id, True, 0.25)
    assert store.best("w0") == old
    assert store.check().rows == 2


def test_a_record_that_was_appended_again_counts_once(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    one, two, three = (timed("a", 1e-3 * number) for number in (1, 2, 3))
    store.append([one, two])
    store.append([two])
    check = store.check()
    assert (check.files, check.rows, check.repeats) == (2, 2, 1)
    assert store.add([two, three, three]) == 1
    assert store.add([two, three]) == 0
    check = store.check()
    assert (check.files, check.rows, check.repeats) == (3, 3, 1)


@pytest.mark.parametrize("text", ["", '"abc"', "null", '{"schema_version": 1e400}', "{}", "[" * 200_000, "[]"])
def test_a_damaged_marker_is_set_aside_and_written_again(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 0.1)])
    (tmp_path / "store.json").write_text(text)
    store = ParquetRecordStore(tmp_path)
    assert "store.json" in caplog.text
    store.append([timed("w0", 0.2)])
    assert len(ParquetRecordStore(tmp_path).records()) == 2
    assert (tmp_path / "quarantine" / "store.json").exists()
    assert (tmp_path / "store.json").read_text().startswith('{"schema_version": ')


def test_check_finds_the_rows_of_files_that_a_compaction_joins_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in (0.1, 0.2, 0.3):
        ParquetRecordStore(tmp_path).append([timed("w0", seconds)])
    store, read, calls = ParquetRecordStore(tmp_path), read_part, iter(range(99))

    def read_late(blobs: BlobStore, name: str) -> Any:
        if next(calls) == 1:
            compact(tmp_path, 2)
        return read(blobs, name)

    monkeypatch.setattr(parquet, "read_part", read_late)
    found = store.check()
    assert (found.files, found.rows, found.repeats) == (1, 3, 0)


def test_check_lists_the_store_once_however_many_tasks_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed(f"w{number}", 0.1) for number in range(5)])
    listed, files = list[str](), LocalBlobStore.files

    def counted(self: LocalBlobStore, folder: str) -> list[str]:
        listed.append(folder)
        return files(self, folder)

    monkeypatch.setattr(LocalBlobStore, "files", counted)
    assert store.check().files == 5
    assert listed == ["records", "records", "quarantine"]  # for record files, and for temporaries


def test_check_ends_when_files_are_replaced_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 0.1)])
    calls = itertools.count()

    def gone(*_: object) -> Any:
        assert next(calls) < 99, "the check does not end"
        raise FileNotFoundError

    monkeypatch.setattr(parquet, "read_part", gone)
    with pytest.raises(StoreError, match="replaced all the time; check again"):
        store.check()


def test_a_folder_that_is_linked_into_itself_is_walked_once(tmp_path: Path) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 0.1)])
    (tmp_path / "records" / "loop").symlink_to(tmp_path)
    (tmp_path / "records" / "self").symlink_to("self")
    assert len(ParquetRecordStore(tmp_path).records()) == 1
