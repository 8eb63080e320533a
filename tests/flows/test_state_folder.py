"""The check of the state folder before a run: each way in which it can be unusable is one sentence and exit code 2."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core.errors import OptionError, StoreError
from retune.flows.cli import exits, state_folder
from retune.flows.cli.state_folder import check_state_folder, explain_disk_errors
from tests.support.flows.command_line import Refused
from tests.support.flows.networks import write_mlp
from tests.support.flows.runs import PATIENCE_SECONDS, command, environment_on, stored


def failing(code: int) -> Callable[..., Any]:
    """A system call that fails with an error number."""

    def call(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """A folder with something mounted on it. Skips the test where that is not permitted."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount")
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_check_leaves_nothing_behind(tmp_path: Path) -> None:
    free, seconds = check_state_folder(tmp_path / "new" / "state")
    assert free > state_folder.ROOM_BYTES
    assert seconds > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "used" / "runs").mkdir(parents=True)
    check_state_folder(tmp_path / "used")
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["runs"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from retune.flows.cli.state_folder import check_state_folder
os.posix_fallocate = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
check_state_folder(Path(sys.argv[1]))
"""


def test_the_next_check_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    check_state_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("os.posix_fallocate", errno.ENOSPC, ("No space left on device", "free 16 MB or more")),
        ("os.posix_fallocate", errno.EDQUOT, ("quota", "free 16 MB or more")),
        ("os.mkdir", errno.EROFS, ("Read-only file system", "--store")),
        ("fcntl.flock", errno.ENOLCK, ("No locks available", "--store")),
    ],
)
def test_an_unusable_state_folder_is_one_sentence_before_anything_starts(
    call: str, code: int, words: tuple[str, ...], folder: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(call, failing(code))
        said = refused("tune", "mlp", "--store", str(folder / "state"))
    assert said.startswith(f"retune: cannot use {folder / 'state'} as state folder: ")
    assert all(word in said for word in words)
    assert list(folder.iterdir()) == []


def test_a_limit_on_the_size_of_files_is_found(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(StoreError, match="File too large; free 16 MB or more"):
            check_state_folder(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_HOME", "x" * 5000)
    said = refused("tune", "mlp")
    assert "File name too long; shorten its path" in said
    assert len(said) < 400
    assert "File name too long" in refused("records", "list")
    with pytest.raises(StoreError, match="File name too long; shorten its path or the network's name"):
        check_state_folder(tmp_path, longest_name=256)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_refused(folder: Path, refused: Refused) -> None:
    with mounted(folder / "disk", "-t", "tmpfs", "-o", "size=3m", "tmpfs"):
        assert "No space left on device" in refused("tune", "mlp", "--store", str(folder / "disk"))
        assert list((folder / "disk").iterdir()) == []


def test_a_folder_that_is_mounted_read_only_is_refused(folder: Path, refused: Refused) -> None:
    with mounted(folder / "disk", "-t", "tmpfs", "-o", "ro", "tmpfs"):
        assert "Read-only file system" in refused("tune", "mlp", "--store", str(folder / "disk"))


def test_an_error_is_blamed_on_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's server answers with its own error when its database cannot grow."""
    for full, kind in ((False, RuntimeError), (True, StoreError)):
        if full:
            monkeypatch.setattr("os.posix_fallocate", failing(errno.ENOSPC))
        with pytest.raises(kind), explain_disk_errors(tmp_path):
            raise RuntimeError("Internal Server Error")
    with pytest.raises(OptionError), explain_disk_errors(tmp_path):  # which says itself what is wrong
        raise OptionError("no such option")


def test_a_temporary_folder_that_is_gone_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"cannot make a temporary folder: .*; set TMPDIR to one"):
        state_folder.make_private_folder()
    said = r"file for temporary files: .* another folder with TMPDIR"
    with pytest.raises(StoreError, match=said), explain_disk_errors(tmp_path / "state"):
        raise RuntimeError("Internal Server Error")


@pytest.mark.slow
def test_a_run_whose_disk_fills_up_ends_with_a_sentence_and_resumes(tmp_path: Path) -> None:
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "disk"
    environment = environment_on(home)

    def started() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command(network, home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    with mounted(home, "-t", "tmpfs", "-o", "size=48m", "tmpfs"):
        with started() as run:
            assert run.stdout is not None
            assert any(line.startswith("round 2:") for line in run.stdout)
            with (home / "filler").open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(1 << 12)):
                    pass
            _, said = run.communicate(timeout=PATIENCE_SECONDS)
        assert run.returncode == exits.USER_ERROR, said
        *notes, last = said.splitlines()
        assert all(line.startswith("retune: the embedded Prefect server") for line in notes), said
        assert last.startswith("retune: ")
        assert "No space left on device" in last
        before = stored(home)
        assert before
        (home / "filler").unlink()
        with started() as run:
            _, said = run.communicate(timeout=PATIENCE_SECONDS)
        assert run.returncode == exits.OK, said
        assert set(before) <= set(stored(home))
