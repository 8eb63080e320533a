"""A file takes its name when it is whole, and not before."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compiler.errors import ArtifactError
from compiler.runtime.published import publish_text, published, require_writable
from compiler.runtime.temporaries import FOREIGN_SECONDS, remove_abandoned, temporary_in


def test_a_text_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.json"
    for text in ("old", "new, with ü"):
        publish_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    publish_text(path, "old")

    def fail() -> None:
        with published(path) as temporary:
            temporary.write_text("half of the n", encoding="utf-8")
            raise RuntimeError("the writer is ended here")

    with pytest.raises(RuntimeError):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text(encoding="utf-8") == "old"


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"cannot write .*report\.json"):
        publish_text(tmp_path / "file" / "report.json", "text")


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    require_writable(path)
    publish_text(path, "text")
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
from compiler.runtime.published import published
with published(Path(sys.argv[1])) as temporary:
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
            publish_text(tmp_path / "b", "text")
            assert left.exists()  # its writer lives
        finally:
            writer.send_signal(signal.SIGKILL)
    remove_abandoned.cache_clear()  # as in another process
    publish_text(tmp_path / "c", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.tmp", "b", "c"]


@pytest.mark.parametrize("name", [".01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp", f".report.json.{'a' * 32}.tmp"])
@pytest.mark.parametrize(("age", "stays"), [(FOREIGN_SECONDS - 3600, True), (FOREIGN_SECONDS + 3600, False)])
def test_a_temporary_of_an_unknown_writer_goes_after_a_week(name: str, age: float, stays: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("half")
    os.utime(path, (time.time() - age,) * 2)
    temporary_in(tmp_path)
    assert path.exists() == stays
