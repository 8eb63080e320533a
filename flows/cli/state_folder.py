"""The check that a state folder can be used, made before a run starts and after one fails."""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retune.compiler.core.errors import RetuneError, StoreError
from retune.compiler.runtime.temporaries import temporary_in
from retune.storage.files import make_folder, write_through

ROOM_BYTES = 16 << 20
"""Free space that a run needs to begin with."""

LONGEST_NAME = 100
"""Letters of the longest file name that does not depend on the network's name, rounded up."""

_FULL = f"free {ROOM_BYTES >> 20} MB or more there"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.ENAMETOOLONG: "shorten its path or the network's name",
}


def check_state_folder(home: Path, longest_name: int = LONGEST_NAME) -> tuple[int, float]:
    """Do in the folder what a run does: write a file, lock it, reserve space. Nothing is left behind. Returns the bytes
    that are free, and the seconds until a small file is on the disk.

    Raises: StoreError.
    """
    try:
        missing = [folder for folder in (home, *home.parents) if not folder.exists()]
        make_folder(home)
        try:
            free = shutil.disk_usage(home).free
            with _temporary_folder(home) as folder:
                probe = folder / ("-" * max(longest_name, LONGEST_NAME))
                began = time.perf_counter()
                write_through(probe, b"probe")
                seconds = time.perf_counter() - began
                with probe.open("r+b") as file:
                    # The ledger's locks; NFS mounts without a lock service refuse them here, not in the middle of a
                    # run.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Reserves blocks, where a sparse file would succeed on a full disk; quotas count as well.
                    os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
            return free, seconds
        finally:
            for each in missing:
                with suppress(OSError):  # another process has begun to use it
                    each.rmdir()
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "make it a folder that you may write to")
        raise _unusable(home, error.strerror or str(error), advice) from error


@contextmanager
def _temporary_folder(home: Path) -> Iterator[Path]:
    """A folder until the block ends. The next process removes what a killed one left."""
    folder = temporary_in(home)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def make_private_folder() -> Path:
    """A new folder for what Prefect keeps during a run, which is partly code: pickles, settings of logging. A state
    folder may be shared, or come from elsewhere. Raises: StoreError.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="retune-"))
    except OSError as error:
        raise StoreError(f"cannot make a temporary folder: {error.strerror or error}; set TMPDIR to one") from error


@contextmanager
def explain_disk_errors(home: Path) -> Iterator[None]:
    """Turn an error that is not ours into a StoreError where the state folder or the temporary one cannot be used any
    more: Prefect's server answers with its own error when its database cannot grow.
    """
    try:
        yield
    except RetuneError:
        raise
    except Exception:
        for folder in (home, Path(tempfile.gettempdir())):
            check_state_folder(folder)
        raise


def _unusable(home: Path, reason: str, advice: str) -> StoreError:
    shown = str(home) if len(str(home)) < 500 else f"{str(home)[:100]}…"
    return StoreError(
        f"cannot use {shown} as state folder: {reason}; {advice}, or choose another folder with --store or RETUNE_HOME"
        if home != Path(tempfile.gettempdir())
        else f"cannot use {shown} for temporary files: {reason}; {advice}, or choose another folder with TMPDIR"
    )
