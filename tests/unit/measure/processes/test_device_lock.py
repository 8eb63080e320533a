"""A device is held by one at a time, and the lock is nothing that somebody else has put in its place."""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.processes import device_lock
from retune.compiler.measure.processes.device_lock import lock_device


def test_a_second_one_waits_for_the_first(tmp_path: Path) -> None:
    path, order = tmp_path / "device.lock", []

    def second() -> None:
        with lock_device(path):
            order.append("second")

    with lock_device(path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_who_waits_says_which_process_holds_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_lock, "WAIT_SECONDS", 0.01)
    path = tmp_path / "device.lock"

    def second() -> None:
        with lock_device(path):
            pass

    with lock_device(path):
        thread = threading.Thread(target=second)
        thread.start()
        while not caplog.records:
            thread.join(0.01)
    thread.join()
    assert f"waiting for {path}, which process {os.getpid()} holds" in caplog.text


def test_a_file_of_another_user_will_do(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    path.touch()
    path.chmod(0o444)
    with lock_device(path), path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_other_users_may_open_the_file_whatever_the_umask(tmp_path: Path) -> None:
    path, umask = tmp_path / "device.lock", os.umask(0o077)
    try:
        with lock_device(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o444
    finally:
        os.umask(umask)


def test_deleted_lock_file_is_created_again(tmp_path: Path) -> None:
    path, entered = tmp_path / "device.lock", threading.Event()

    def second() -> None:
        with lock_device(path):
            entered.set()

    with lock_device(path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        path.unlink()
    thread.join()
    assert entered.is_set()
    assert path.stat().st_size == 0


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "file with something in it", "folder"])
def test_foreign_file_in_place_of_the_lock_is_refused_and_kept(kind: str, tmp_path: Path) -> None:
    path, target = tmp_path / "device.lock", tmp_path / "target"
    if kind == "link":
        target.touch()
    if "link" in kind:
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("precious")
    with pytest.raises(MeasureError, match="remove it"), lock_device(path):
        raise AssertionError("held")
    assert target.exists() == (kind == "link")
    assert kind != "file with something in it" or path.read_text() == "precious"


@pytest.fixture
def shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_spoilt_file_stops_no_run_and_a_warning_names_it(
    shared_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = device_lock.lock_path()
    path.write_text("another's")
    for _ in range(2):
        with (
            device_lock.device_lock(),
            (shared_folder / "cache" / "retune" / path.name).open() as own,
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (warning,) = caplog.messages
    assert warning.startswith(f"{path} is not the empty file")
    assert "remove it, or ask its owner or root to; nothing is lost" in warning
    assert path.read_text() == "another's"


@pytest.mark.usefixtures("shared_folder")
@pytest.mark.parametrize("is_others", [True, False])
def test_only_a_process_of_another_user_is_waited_for_in_vain(
    is_others: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_lock, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(device_lock, "OTHERS_SECONDS", 0.02)
    monkeypatch.setattr(device_lock, "_holder_of", lambda _: ("process 7", is_others))
    entered = threading.Event()

    def second() -> None:
        with device_lock.device_lock():
            entered.set()

    with device_lock.device_lock():
        thread = threading.Thread(target=second)
        thread.start()
        while len(caplog.messages) < 8 and not entered.is_set():
            thread.join(0.01)
        assert entered.is_set() == is_others
    thread.join()
    assert any("process 7 of another user" in text for text in caplog.messages) == is_others
