"""A file takes its name when it is whole, and not before."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime import temporaries
from retune.compiler.runtime.atomic_write import atomic_write, require_writable, sync_folder, write_text_atomically
from retune.compiler.runtime.temporaries import FOREIGN_SECONDS, remove_abandoned, temporary_in


def test_a_text_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.json"
    for text in ("old", "new, with ü"):
        write_text_atomically(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_text_atomically(path, "old")

    def fail() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half of the n", encoding="utf-8")
            raise RuntimeError("the writer is ended here")

    with pytest.raises(RuntimeError):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text(encoding="utf-8") == "old"


def test_unwritable_path_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"cannot write .*report\.json"):
        write_text_atomically(tmp_path / "file" / "report.json", "text")


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    require_writable(path)
    write_text_atomically(path, "text")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_what_cannot_be_written_is_found_beforehand(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "nowhere" / "a.so", "No such file or directory"),
        (tmp_path / ("n" * 256), "File name too long"),
        (tmp_path / ("ü" * 128), "File name too long"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(ArtifactError, match=f"cannot write {path}: {reason}"):
            require_writable(path)
    assert list(tmp_path.iterdir()) == []


_WRITER = """
import sys, time
from pathlib import Path
from retune.compiler.runtime.atomic_write import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("half of the n")
    print("begun", flush=True)
    time.sleep(600)
"""


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path / "a")], stdout=subprocess.PIPE, env={**os.environ}
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"begun\n"
            (left,) = tmp_path.iterdir()
            (tmp_path / ".mine.tmp").write_text("of a user")
            write_text_atomically(tmp_path / "b", "text")
            assert left.exists()  # its writer lives
        finally:
            writer.send_signal(signal.SIGKILL)
    remove_abandoned.cache_clear()  # as in another process
    write_text_atomically(tmp_path / "c", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.tmp", "b", "c"]


@pytest.mark.parametrize("writer", ["", "-00000000-1-1"])
@pytest.mark.parametrize(("age", "stays"), [(FOREIGN_SECONDS - 3600, True), (FOREIGN_SECONDS + 3600, False)])
def test_a_temporary_of_an_unknown_writer_goes_after_a_week(
    writer: str, age: float, stays: bool, tmp_path: Path
) -> None:
    path = tmp_path / f".01ARZ3NDEKTSV4RRFFQ69G5FAV{writer}.tmp"
    path.write_text("half")
    os.utime(path, (time.time() - age,) * 2)
    temporary_in(tmp_path)
    assert path.exists() == stays


def test_temporaries_of_other_programs_stay_however_old(tmp_path: Path) -> None:
    names = {f".mydata.db.{'0123456789abcdef' * 2}.tmp", f".{'a' * 32}.tmp", "x.tmp"}
    for name in names:
        (tmp_path / name).write_text("of another program")
        os.utime(tmp_path / name, (0, 0))
    temporary_in(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names


def hide_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a /proc that is mounted with hidepid=2 does to other users."""

    def hidden(pid: int) -> int:
        raise FileNotFoundError(errno.ENOENT, "hidden", f"/proc/{pid}/stat")

    def refused(*_: int) -> None:
        raise PermissionError(errno.EPERM, "of another user")

    monkeypatch.setattr(temporaries, "_start_of", hidden)
    monkeypatch.setattr(os, "kill", refused)


def test_the_temporary_of_a_hidden_writer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = temporary_in(tmp_path)
    path.write_text("half")
    hide_processes(monkeypatch)
    remove_abandoned.cache_clear()  # as in another process
    remove_abandoned(tmp_path)
    assert path.exists()


def test_a_file_is_written_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, *_: object, **__: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    temporaries.process_space.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", missing)
        patch.setattr(Path, "read_bytes", missing)
        try:
            assert len(temporary_in(tmp_path).name) == len(".01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp")
            assert temporaries.process_space() == temporaries.process_space()
            write_text_atomically(tmp_path / "a", "text")
        finally:
            temporaries.process_space.cache_clear()
    assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.EINVAL), ("open", errno.EACCES)])
def test_a_folder_that_cannot_be_flushed_is_no_error(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    sync_folder(tmp_path)


def test_a_folder_that_a_faulty_disk_cannot_keep_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
