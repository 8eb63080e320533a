"""Tests of the artifact store: folders are complete or absent, and unsafe names are rejected."""

from pathlib import Path

import pytest

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.storage.artifacts import ArtifactStore, content_key

FILES = {"plan.json": b"{}", "kernels/dense.o": b"\x7fELF"}


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    key = content_key(FILES)
    assert store.get(key) is None
    store.put(key, FILES)
    assert store.get(key) == FILES
    assert {name: (tmp_path / "artifacts" / key / name).read_bytes() for name in FILES} == FILES
    assert store.keys() == (key,)


def test_a_key_never_changes_its_meaning(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put("k", FILES)
    store.put("k", {"plan.json": b"other"})
    assert store.get("k") == FILES


def test_half_an_artifact_is_none(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put("k", FILES)
    (tmp_path / "artifacts" / "k.json").unlink()
    assert store.get("k") is None
    assert store.keys() == ()
    store.put("k", FILES)
    assert store.get("k") == FILES


def test_damage_is_noticed(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put("k", FILES)
    (tmp_path / "artifacts" / "k" / "kernels" / "dense.o").write_bytes(b"\x7fELG")
    with pytest.raises(CorruptRecordError, match=r"dense\.o is damaged"):
        store.get("k")
    (tmp_path / "artifacts" / "k" / "kernels" / "dense.o").unlink()
    with pytest.raises(CorruptRecordError, match=r"dense\.o is missing"):
        store.get("k")


def test_one_file_is_read_alone(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put("k", FILES)
    name = next(iter(FILES))
    assert store.read("k", name) == FILES[name]
    assert store.read("k", "other") is None
    assert store.read("unknown", name) is None


@pytest.mark.parametrize("listed", ["[1]", "{", '{"a": 1}', '{"a": {}}', "null"])
def test_a_list_that_is_none_is_damage(listed: str, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put("k", FILES)
    (tmp_path / "artifacts" / "k.json").write_text(listed)
    with pytest.raises(CorruptRecordError, match="cannot be read"):
        store.get("k")


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)

    def full(handle: int) -> None:
        raise OSError(28, f"No space left on device for {handle}")

    monkeypatch.setattr("retune.storage.files.os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        store.put("k", FILES)
    assert store.get("k") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


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
