"""A store in an S3 bucket: many processes, killed ones, compaction, damage, artifacts, training data, runs."""

import json
import logging
import math
import os
import signal
import subprocess
from pathlib import Path

import pytest

from retune.compiler.core.errors import StoreError
from retune.storage.artifacts import ArtifactStore, content_key
from retune.storage.blob_store import BlobStore
from retune.storage.checkpoints import CheckpointStore
from retune.storage.compaction import Compaction, Retention, compact
from retune.storage.layout import part_names
from retune.storage.parquet import ParquetRecordStore
from retune.storage.query import connect, run_query
from retune.storage.runs import RunLedger, append_round, rounds_of
from retune.storage.store_url import open_blob_store
from tests.support.record_samples import another_owner, failed, timed
from tests.support.store_writers import ROOT, WRITER


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """The URL of an empty place in an object store."""
    if request.param == "memory":
        return f"memory://{request.node.name}"
    url: str = request.getfixturevalue("s3_place")
    return url


@pytest.fixture(params=["folder", "memory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """An empty blob store of each kind."""
    match request.param:
        case "folder":
            return open_blob_store(tmp_path)
        case "memory":
            return open_blob_store(f"memory://{request.node.name}")
        case _:
            return open_blob_store(request.getfixturevalue("s3_place"))


class TestBlobStoreContract:
    """What every blob store promises."""

    def test_what_is_published_is_read(self, blobs: BlobStore) -> None:
        blobs.put({"a/b/c.bin": b"0123456789", "a/d.bin": b""})
        assert blobs.read("a/b/c.bin") == b"0123456789"
        assert blobs.read("a/d.bin") == b""
        assert [blobs.read_end("a/b/c.bin", count) for count in (3, 10, 99)] == [b"789", b"0123456789", b"0123456789"]
        with blobs.open("a/b/c.bin") as file:
            file.seek(4)
            assert file.read(2) == b"45"
        assert sorted(blobs.files("a")) == ["a/b/c.bin", "a/d.bin"]
        assert blobs.files("a/b") == ["a/b/c.bin"]
        assert blobs.exists("a/d.bin")
        blobs.put({"a/d.bin": b"new"})
        assert blobs.read("a/d.bin") == b"new"

    def test_what_is_not_there_is_said_to_be_missing(self, blobs: BlobStore) -> None:
        assert blobs.files("none") == []
        assert not blobs.exists("none")
        assert blobs.lines("none") == []
        blobs.remove(["none/at/all"])
        for ask in (blobs.read, lambda name: blobs.read_end(name, 5), blobs.open):
            with pytest.raises(FileNotFoundError):
                ask("none/at/all")
        with pytest.raises(FileNotFoundError):
            blobs.move("none", "other")

    def test_a_folder_is_no_prefix(self, blobs: BlobStore) -> None:
        blobs.put({"a/x": b"1", "ab/x": b"2"})
        assert blobs.files("a") == ["a/x"]

    def test_only_the_first_creates(self, blobs: BlobStore) -> None:
        assert blobs.create("a/only", b"first")
        assert not blobs.create("a/only", b"second")
        assert blobs.read("a/only") == b"first"
        assert blobs.files("a") == ["a/only"]

    def test_a_file_moves_and_goes(self, blobs: BlobStore) -> None:
        blobs.put({"a/x": b"1"})
        blobs.move("a/x", "b/c/y")
        assert not blobs.exists("a/x")
        assert blobs.read("b/c/y") == b"1"
        blobs.remove(["b/c/y", "b/c/y"])
        assert blobs.files("b") == []

    def test_lines_come_in_order(self, blobs: BlobStore) -> None:
        for number in range(12):
            blobs.add_line("a/log", f"line {number}".encode())
        assert blobs.lines("a/log") == [f"line {number}".encode() for number in range(12)]

    def test_a_lock_has_one_owner(self, blobs: BlobStore) -> None:
        first = blobs.lock("a/lock")
        with pytest.raises(StoreError, match=f"process {os.getpid()}.* is working on this run already"):
            blobs.lock("a/lock")
        first.close()
        blobs.lock("a/lock").close()
        blobs.lock("a/lock").close()


@pytest.mark.long
def test_many_writers_a_killed_one_and_compaction(s3_place: str) -> None:
    writers = [
        subprocess.Popen((*WRITER, s3_place, f"writer{number}", rounds), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for number, rounds in enumerate(("8", "8", "0"))
    ]
    killed = writers[-1]
    assert killed.stdout is not None
    acknowledged = [killed.stdout.readline() for _ in range(2)]
    killed.send_signal(signal.SIGKILL)
    acknowledged += killed.stdout.readlines()
    seen = 0
    while any(writer.poll() is None for writer in writers):
        compact(s3_place, least_parts=3)
        count = len(ParquetRecordStore(s3_place).records())
        assert count >= seen
        assert count % 8 == 0
        seen = count
    for writer in writers[:2]:
        acknowledged += writer.communicate()[0].splitlines()
        assert writer.returncode == 0
    killed.stdout.close()
    compact(s3_place, least_parts=2)
    store = ParquetRecordStore(s3_place)
    stored = {record.record_id for record in store.records()}
    assert stored >= {record_id for line in acknowledged for record_id in line.split() if len(record_id) == 26}
    assert len(stored) % 8 == 0
    assert len(part_names(store.blobs)) == 1
    assert store.check().rows == len(stored)


def test_damage_is_set_aside_and_the_rest_serves(place: str, caplog: pytest.LogCaptureFixture) -> None:
    store = ParquetRecordStore(place)
    store.append([timed("w0", 1e-3)])
    store.append([timed("w0", 5e-4)])
    _, bad = part_names(store.blobs)
    data = store.blobs.read(bad)
    store.blobs.put({bad: data[:200] + bytes(100) + data[300:]})
    with caplog.at_level(logging.WARNING):
        assert [record.seconds for record in ParquetRecordStore(place).records()] == [1e-3]
    assert f"{place}/quarantine/{bad}" in caplog.text
    assert not store.blobs.exists(bad)
    assert store.blobs.exists(f"quarantine/{bad}")
    assert ParquetRecordStore(place).check().rows == 1


def test_the_best_of_compacted_rows(place: str) -> None:
    store = ParquetRecordStore(place)
    for number in range(10):
        store.append([timed("w0", 1e-3 * (1 + number)), failed("w0")])
    best = store.best("w0")
    assert compact(place) == Compaction(10, 1, 20)
    assert ParquetRecordStore(place).best("w0") == best
    assert compact(place, retention=Retention(best=2)) == Compaction(1, 1, 2, 18)
    assert [record.seconds for record in ParquetRecordStore(place).records()] == [1e-3, 2e-3]


def test_sql_sees_the_records_and_rounds(place: str) -> None:
    pytest.importorskip("duckdb")
    store = ParquetRecordStore(place)
    store.append([timed("w0", 1e-3), failed("w1")])
    append_round(place, "RUN", {"round": 0, "elapsed": 1.5, "task_name": "conv"})
    append_round(place, "RUN", {"round": 1, "elapsed": 2.5, "task_name": "conv"})
    with connect(place) as sql:
        found = sql.execute("SELECT task_key, seconds FROM records ORDER BY 1").fetchall()
        assert found == [("w0", 1e-3), ("w1", None)]
        assert sql.execute("SELECT task_key FROM best").fetchall() == [("w0",)]
    assert run_query(place, "SELECT max(elapsed), count(*) FROM rounds")[1] == [(2.5, 2)]
    assert [row["round"] for row in rounds_of(place, "RUN")] == [0, 1]


def test_artifacts_and_checkpoints_are_kept_in_an_object_store(place: str) -> None:
    files = {"plan.json": b"{}", "kernels/dense.o": b"\x7fELF"}
    artifacts = ArtifactStore(place)
    artifacts.put(content_key(files), files)
    assert ArtifactStore(place).get(content_key(files)) == files
    assert artifacts.keys() == (content_key(files),)
    training_data = CheckpointStore(place, "llvm", "machine", 2, version=3)
    training_data.save(b"one")
    training_data.save(b"two")
    assert training_data.newest(before=math.inf) == b"two"


def test_a_run_of_a_killed_process_is_resumed_at_once(s3_place: str) -> None:
    ledger = RunLedger(s3_place)
    with (
        another_owner(s3_place) as (run_id, process),
        pytest.raises(StoreError, match=f"process {process} of .* is working on this run already"),
    ):
        ledger.open_or_resume("f", {})
    with ledger.open_or_resume("f", {}) as run:
        assert run.run_id == run_id
        assert run.info.resumed
        ledger.complete(run_id, {"best": 1})
    assert ledger.get(run_id).summary == {"best": 1}


def test_a_store_that_refuses_is_named(s3_place: str) -> None:
    with pytest.raises(StoreError, match=r"cannot write s3://nobodys/place/store\.json: .*[Bb]ucket does not exist"):
        ParquetRecordStore("s3://nobodys/place").append([timed("w0", 1.0)])
    bad = f"{s3_place}/store.json"
    open_blob_store(s3_place).put({"store.json": json.dumps({"schema_version": 99}).encode()})
    with pytest.raises(StoreError, match="upgrade Retune"):
        ParquetRecordStore(bad.removesuffix("/store.json"))


@pytest.mark.parametrize(
    "url",
    ["nonsense://x", "file://elsewhere/x", "ftp://127.0.0.1:1/x", "github://", "zip://", "zip://no.zip", "dir://x"],
)
def test_url_of_an_unknown_scheme_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=url.partition(":")[0]):
        open_blob_store(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("retune.storage.object_store.url_to_fs", missing)
    with pytest.raises(StoreError, match=r"pip install -e '\.\[s3\]'"):
        open_blob_store("s3://bucket/x")
