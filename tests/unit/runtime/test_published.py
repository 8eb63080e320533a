"""A file takes its name when it is whole, and not before."""

from pathlib import Path

import pytest

from compiler.errors import ArtifactError
from compiler.runtime.published import publish_text, published, require_writable


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
