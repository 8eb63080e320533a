"""What programs look like, kept for runs that go on: a cache of the device, of bounded size."""

from pathlib import Path

import pytest

from retune.storage import looks
from retune.storage.looks import LookStore


@pytest.fixture
def store(tmp_path: Path) -> LookStore:
    return LookStore(tmp_path, "llvm", "machine", 2, version=5)


def test_what_was_saved_is_loaded_the_newest_first(store: LookStore, tmp_path: Path) -> None:
    assert store.load() == []
    store.save(b"one", 1)
    store.save(b"two", 2)
    assert store.load() == [b"two", b"one"]
    for other in (("llvm", "machine", 1, 5), ("llvm", "other", 2, 5), ("llvm -mcpu=x", "machine", 2, 5)):
        assert LookStore(tmp_path, *other).load() == []
    assert LookStore(tmp_path, "llvm", "machine", 2, version=6).load() == []


def test_the_oldest_make_room(store: LookStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "KEPT_PROGRAMS", 10)
    for number in range(5):
        store.save(b"%d" % number, 4)
    assert store.load() == [b"4", b"3"]
    store.save(b"large", 100)
    assert store.load() == [b"large"]


def test_a_damaged_file_goes_and_others_stay(store: LookStore, tmp_path: Path) -> None:
    store.save(b"sound", 1)
    store.save(b"damaged", 1)
    (path,) = (path for path in tmp_path.rglob("*.npz") if path.read_bytes() == b"damaged")
    path.write_bytes(b"danaged")
    (path.parent / "notes.txt").write_text("of somebody else")
    assert store.load() == [b"sound"]
    assert not path.exists()
    assert (path.parent / "notes.txt").exists()
