"""Many small files become few large ones, and no reader ever misses or doubles a record."""

import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from retune.compiler.core.errors import StoreError
from retune.storage import compaction, parts
from retune.storage.blob_store import LocalBlobStore
from retune.storage.compaction import Compaction, Retention, compact
from retune.storage.parquet import ParquetRecordStore
from retune.storage.query import connect
from retune.storage.schema import SCHEMA, canonical
from tests.support.record_samples import failed, part_paths, timed, timed_at
from tests.support.store_writers import start_writer


def fill(root: Path, rounds: int = 10, tasks: tuple[str, ...] = ("w0", "w1")) -> ParquetRecordStore:
    store = ParquetRecordStore(root)
    for number in range(rounds):
        for task in tasks:
            rows = [timed(task, 1e-3 * (1 + (7 * number + 3 * row) % 11), round=number) for row in range(4)]
            store.append([*rows, failed(task, round=number)])
    return store


def test_the_same_records_in_fewer_files(tmp_path: Path) -> None:
    store = fill(tmp_path)
    before, best = store.records(), store.best_per_task()
    assert compact(tmp_path) == Compaction(20, 2, 100)
    assert len(part_paths(tmp_path)) == 2
    for reader in (store, ParquetRecordStore(tmp_path)):
        assert reader.records() == before
        assert reader.best_per_task() == best
        assert reader.check().rows == 100
    assert compact(tmp_path) == Compaction(0, 0, 0)


def test_trials_at_several_shapes_stay_whole(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    trials = [timed_at("w0", {4: 1e-3 * number, 40: 1e-2 - 2e-3 * number}) for number in range(1, 5)]
    for trial in trials:
        store.append([trial, trials[0]])  # a retried append
    kept = {trial.record_id: canonical(trial) for trial in trials}
    compact(tmp_path, least_parts=2)
    again = ParquetRecordStore(tmp_path)
    assert {record.record_id: record for record in again.records()} == kept
    assert again.best_per_task()["w0"] == kept[trials[3].record_id]
    assert again.table(columns=["sizes"]).num_rows == 8
    assert [(row["trials"], row["best_seconds"]) for row in again.tasks()] == [(4, trials[3].seconds)]
    with connect(tmp_path) as sql:
        assert sql.sql("SELECT count(*), min(seconds) FROM records").fetchall() == [(4, trials[3].seconds)]
        assert sql.sql("SELECT sizes, min(seconds) FROM shapes GROUP BY ALL ORDER BY ALL").fetchall() == [
            ('{"n": 40}', 1e-2 - 8e-3),
            ('{"n": 4}', 1e-3),
        ]
    compact(tmp_path, retention=Retention(best=2), now=3e9)
    assert {record.record_id for record in ParquetRecordStore(tmp_path).records()} == {
        trial.record_id for trial in trials[2:]
    }
    assert ParquetRecordStore(tmp_path).table(columns=["sizes"]).num_rows == 4


def test_each_device_has_a_file_of_its_own_and_others_are_left_alone(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    for number in range(3):
        store.append([timed("w0", 1.0 + number, device="here")])
        store.append([timed("w0", 2.0 + number, device="there")])
        store.append([timed("w0", 3.0, device="here"), timed("w0", 4.0, device="there")])
    before = store.records()
    assert compact(tmp_path, least_parts=2) == Compaction(6, 2, 6)
    assert len(part_paths(tmp_path)) == 5
    assert ParquetRecordStore(tmp_path).records() == before
    best = ParquetRecordStore(tmp_path).best("w0", device="there")
    assert best is not None
    assert best.seconds == 2.0


def test_only_the_fastest_rows_are_read_for_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FIRST_ROWS", 4)
    monkeypatch.setattr(parts, "GROUP_ROWS", 16)
    store = fill(tmp_path, rounds=20, tasks=("w0",))
    best = store.best("w0")
    compact(tmp_path)
    cold = ParquetRecordStore(tmp_path)
    (path,) = part_paths(tmp_path)
    outline = parts.read_outline(LocalBlobStore(tmp_path), path.relative_to(tmp_path).as_posix())
    assert outline is not None
    assert (outline.rows, outline.groups, outline.fastest) == (100, 7, (0, 1))
    monkeypatch.setattr(parts, "read_part", lambda *_: pytest.fail("every row was read"))
    assert cold.best("w0") == best


def test_no_file_grows_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FULL_ROWS", 30)
    store = fill(tmp_path, rounds=20, tasks=("w0",))
    before = store.records()
    assert compact(tmp_path) == Compaction(20, 4, 100)
    assert ParquetRecordStore(tmp_path).records() == before


def test_a_crash_before_the_small_files_are_removed_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(tmp_path, tasks=("w0",))
    before = store.records()

    def refuse(_: Path, **_kind: bool) -> None:
        raise OSError(30, "Read-only file system", "x.parquet")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", refuse)
        with pytest.raises(StoreError, match="cannot remove"):
            compact(tmp_path)
    assert len(part_paths(tmp_path)) == 11
    assert ParquetRecordStore(tmp_path).records() == before
    with connect(tmp_path) as sql:
        assert sql.sql("SELECT count(*) FROM records").fetchall() == [(50,)]
    assert compact(tmp_path) == Compaction(11, 1, 50)
    assert ParquetRecordStore(tmp_path).records() == before


def test_a_reader_that_listed_before_finds_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fill(tmp_path).records()
    best = ParquetRecordStore(tmp_path).best_per_task()
    for ask, wanted in ((lambda store: store.records(), before), (lambda store: store.best_per_task(), best)):
        fill_again = timed("w2", 1.0)
        ParquetRecordStore(tmp_path).append([fill_again])
        reader = ParquetRecordStore(tmp_path)
        list_names = reader._names
        done: list[bool] = []

        def listed_then_compacted(selection: object, list_names=list_names, done=done) -> list[str]:  # type: ignore[no-untyped-def]
            names = list_names(selection)
            if not done:
                done.append(True)
                compact(tmp_path, least_parts=1)
            return names

        monkeypatch.setattr(reader, "_names", listed_then_compacted)
        found = ask(reader)
        kept = (
            {key: record for key, record in found.items() if key != "w2"}
            if isinstance(found, dict)
            else [record for record in found if record.task_key != "w2"]
        )
        assert kept == wanted


@pytest.mark.long
def test_writers_readers_and_compaction_at_once(tmp_path: Path) -> None:
    writers: list[subprocess.Popen[str]] = [start_writer(tmp_path, f"writer{number}", 15) for number in range(2)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        compact(tmp_path, least_parts=3)
        reader = ParquetRecordStore(tmp_path)
        count = len(reader.records())
        assert count >= seen
        assert count % 8 == 0
        seen = count
    printed = [line for writer in writers for line in writer.communicate()[0].splitlines()]
    acknowledged = {record_id for line in printed for record_id in line.split()}
    assert len(acknowledged) == 2 * 15 * 8
    compact(tmp_path, least_parts=2)
    assert {record.record_id for record in ParquetRecordStore(tmp_path).records()} == acknowledged
    assert len(part_paths(tmp_path)) == 1


def test_a_damaged_page_is_noticed_and_the_rest_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FIRST_ROWS", 4)
    monkeypatch.setattr(parts, "GROUP_ROWS", 16)
    fill(tmp_path, rounds=20, tasks=("w0",))
    compact(tmp_path)
    (path,) = part_paths(tmp_path)
    column = pq.read_metadata(path).row_group(0).column(SCHEMA.names.index("steps"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 0xFF
    path.write_bytes(bytes(data))
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 5.0)])
    best = store.best("w0")
    assert best is not None
    assert best.seconds == 5.0
    assert not path.exists()


def test_what_was_set_aside_stays_there(tmp_path: Path) -> None:
    fill(tmp_path, tasks=("w0",))
    bad = part_paths(tmp_path)[0].relative_to(tmp_path).as_posix()
    LocalBlobStore(tmp_path).quarantine(bad, ValueError("bad"))
    assert compact(tmp_path) == Compaction(9, 1, 45)
    assert len(ParquetRecordStore(tmp_path).records()) == 45
