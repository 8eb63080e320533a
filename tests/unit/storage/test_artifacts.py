"""In: files under a key. Out: proof that a folder is whole or absent. Always: unsafe names are refused."""

from pathlib import Path

import pytest

from compiler.errors import StoreError
from storage.artifacts import ArtifactStore, content_key

FILES = {"plan.json": b"{}", "kernels/dense.o": b"\x7fELF"}


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    key = content_key(FILES)
    assert store.get(key) is None
    folder = store.put(key, FILES)
    assert store.get(key) == folder
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert store.keys() == (key,)


def test_a_key_never_changes_its_meaning(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put("k", FILES)
    folder = store.put("k", {"plan.json": b"other"})
    assert (folder / "plan.json").read_bytes() == b"{}"


def test_a_failure_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)

    def full(handle: int) -> None:
        raise OSError(28, f"No space left on device for {handle}")

    monkeypatch.setattr("storage.files.os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        store.put("k", FILES)
    assert store.get("k") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["", "..", "a/b", ".hidden", "x" * 200, "a\nb"])
def test_an_unsafe_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError, match="artifact key"):
        ArtifactStore(tmp_path).put(key, FILES)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_an_unsafe_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="file of an artifact"):
        ArtifactStore(tmp_path).put("k", {name: b""})


def test_content_keys_tell_names_and_contents_apart() -> None:
    keys = {content_key(files) for files in ({"a": b"bc"}, {"ab": b"c"}, {"a": b"b", "c": b""}, {"a": b""})}
    assert len(keys) == 4
    assert content_key(dict(reversed(FILES.items()))) == content_key(FILES)
