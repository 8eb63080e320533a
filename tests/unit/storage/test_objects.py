"""A store in an S3 bucket: many processes, killed ones, compaction, damage, artifacts, lessons, runs."""

import json
import logging
import math
import os
import signal
import subprocess
from pathlib import Path

import pytest

from retune.compiler.errors import StoreError
from retune.storage.artifacts import ArtifactStore, content_key
from retune.storage.compaction import Compaction, Retention, compact
from retune.storage.layout import part_names
from retune.storage.lessons import LessonStore
from retune.storage.medium import Medium
from retune.storage.parquet import ParquetRecordStore
from retune.storage.place import open_medium
from retune.storage.query import connect, run_query
from retune.storage.rounds import append_round, rounds_of
from retune.storage.runs import RunLedger
from tests.unit.storage.samples import another_owner, failed, timed
from tests.unit.storage.test_parquet import ROOT, WRITER


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """The URL of an empty place in an object store."""
    if request.param == "memory":
        return f"memory://{request.node.name}"
    url: str = request.getfixturevalue("s3_place")
    return url


@pytest.fixture(params=["folder", "memory", "s3"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Medium:
    """An empty medium of each kind."""
    match request.param:
        case "folder":
            return open_medium(tmp_path)
        case "memory":
            return open_medium(f"memory://{request.node.name}")
        case _:
            return open_medium(request.getfixturevalue("s3_place"))


class TestMediumContract:
    """What every medium promises."""

    def test_what_is_published_is_read(self, medium: Medium) -> None:
        medium.publish({"a/b/c.bin": b"0123456789", "a/d.bin": b""})
        assert medium.read("a/b/c.bin") == b"0123456789"
        assert medium.read("a/d.bin") == b""
        assert [medium.read_end("a/b/c.bin", count) for count in (3, 10, 99)] == [b"789", b"0123456789", b"0123456789"]
        with medium.open("a/b/c.bin") as file:
            file.seek(4)
            assert file.read(2) == b"45"
        assert sorted(medium.files("a")) == ["a/b/c.bin", "a/d.bin"]
        assert medium.files("a/b") == ["a/b/c.bin"]
        assert medium.exists("a/d.bin")
        medium.publish({"a/d.bin": b"new"})
        assert medium.read("a/d.bin") == b"new"

    def test_what_is_not_there_is_said_to_be_missing(self, medium: Medium) -> None:
        assert medium.files("none") == []
        assert not medium.exists("none")
        assert medium.lines("none") == []
        medium.remove(["none/at/all"])
        for ask in (medium.read, lambda name: medium.read_end(name, 5), medium.open):
            with pytest.raises(FileNotFoundError):
                ask("none/at/all")
        with pytest.raises(FileNotFoundError):
            medium.move("none", "other")

    def test_a_folder_is_no_prefix(self, medium: Medium) -> None:
        medium.publish({"a/x": b"1", "ab/x": b"2"})
        assert medium.files("a") == ["a/x"]

    def test_only_the_first_creates(self, medium: Medium) -> None:
        assert medium.create("a/only", b"first")
        assert not medium.create("a/only", b"second")
        assert medium.read("a/only") == b"first"
        assert medium.files("a") == ["a/only"]

    def test_a_file_moves_and_goes(self, medium: Medium) -> None:
        medium.publish({"a/x": b"1"})
        medium.move("a/x", "b/c/y")
        assert not medium.exists("a/x")
        assert medium.read("b/c/y") == b"1"
        medium.remove(["b/c/y", "b/c/y"])
        assert medium.files("b") == []

    def test_lines_come_in_order(self, medium: Medium) -> None:
        for number in range(12):
            medium.add_line("a/log", f"line {number}".encode())
        assert medium.lines("a/log") == [f"line {number}".encode() for number in range(12)]

    def test_a_lock_has_one_owner(self, medium: Medium) -> None:
        first = medium.lock("a/lock")
        with pytest.raises(StoreError, match=f"process {os.getpid()}.* is working on this run already"):
            medium.lock("a/lock")
        first.close()
        medium.lock("a/lock").close()
        medium.lock("a/lock").close()


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
    assert len(part_names(store.medium)) == 1
    assert store.check().rows == len(stored)


def test_damage_is_set_aside_and_the_rest_serves(place: str, caplog: pytest.LogCaptureFixture) -> None:
    store = ParquetRecordStore(place)
    store.append([timed("w0", 1e-3)])
    store.append([timed("w0", 5e-4)])
    _, bad = part_names(store.medium)
    data = store.medium.read(bad)
    store.medium.publish({bad: data[:200] + bytes(100) + data[300:]})
    with caplog.at_level(logging.WARNING):
        assert [record.seconds for record in ParquetRecordStore(place).records()] == [1e-3]
    assert f"{place}/quarantine/{bad}" in caplog.text
    assert not store.medium.exists(bad)
    assert store.medium.exists(f"quarantine/{bad}")
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


def test_artifacts_and_lessons(place: str) -> None:
    files = {"plan.json": b"{}", "kernels/dense.o": b"\x7fELF"}
    artifacts = ArtifactStore(place)
    artifacts.put(content_key(files), files)
    assert ArtifactStore(place).get(content_key(files)) == files
    assert artifacts.keys() == (content_key(files),)
    lessons = LessonStore(place, "llvm", "machine", 2, version=3)
    lessons.save(b"one")
    lessons.save(b"two")
    assert lessons.newest(before=math.inf) == b"two"


def test_a_run_of_a_killed_process_is_resumed_at_once(s3_place: str) -> None:
    ledger = RunLedger(s3_place)
    with (
        another_owner(s3_place) as (run_id, process),
        pytest.raises(StoreError, match=f"process {process} of .* is working on this run already"),
    ):
        ledger.open_or_resume("f", {})
    with ledger.open_or_resume("f", {}) as run:
        assert run.run_id == run_id
        assert run.is_resumed
        ledger.complete(run_id, {"best": 1})
    assert ledger.get(run_id).summary == {"best": 1}


def test_a_store_that_refuses_is_named(s3_place: str) -> None:
    with pytest.raises(StoreError, match=r"cannot write s3://nobodys/place/store\.json: .*[Bb]ucket does not exist"):
        ParquetRecordStore("s3://nobodys/place").append([timed("w0", 1.0)])
    bad = f"{s3_place}/store.json"
    open_medium(s3_place).publish({"store.json": json.dumps({"schema_version": 99}).encode()})
    with pytest.raises(StoreError, match="upgrade Retune"):
        ParquetRecordStore(bad.removesuffix("/store.json"))


@pytest.mark.parametrize(
    "url",
    ["nonsense://x", "file://elsewhere/x", "ftp://127.0.0.1:1/x", "github://", "zip://", "zip://no.zip", "dir://x"],
)
def test_a_url_nobody_can_open_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=url.partition(":")[0]):
        open_medium(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("retune.storage.objects.url_to_fs", missing)
    with pytest.raises(StoreError, match=r"pip install -e '\.\[s3\]'"):
        open_medium("s3://bucket/x")
