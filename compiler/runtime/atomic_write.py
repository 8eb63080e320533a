"""Atomic replacement of files: a path holds the old or the whole new file, even after a power cut.

Names of temporary files identify the writer, so that leftovers of killed writers can be removed.
"""

import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EINVAL, EISDIR, ENOSYS, ENOTSUP, EPERM
from pathlib import Path
from uuid import uuid4

from ulid import ULID

from retune.compiler.core.errors import ArtifactError

# No writer of ours takes days; clocks of machines that share a folder may differ by less.
FOREIGN_SECONDS = 7 * 86400.0
"""A temporary of an invisible process, as on another machine, counts as left over after so long."""

_OURS = re.compile(r"\.[0-9A-Z]{26}(?:-(?P<space>[0-9a-f]{8})-(?P<pid>\d{1,9})-(?P<start>\d{1,19}))?\.tmp")


def temporary_in(folder: Path) -> Path:
    """A fresh name in an existing folder. The first call for a folder removes leftovers of killed writers."""
    remove_abandoned(folder)
    # With its start time, since process numbers are reused.
    start = process_start(os.getpid())
    writer = "" if start is None else f"-{_short_space()}-{os.getpid()}-{start}"
    return folder / f".{ULID()}{writer}.tmp"


@functools.cache
def remove_abandoned(folder: Path) -> None:
    """Remove the temporaries, files and folders, of ended writers; only those this process could see."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not _is_abandoned(entry):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry)
                else:
                    os.unlink(entry)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    ours = _OURS.fullmatch(entry.name)
    if ours and ours["space"] == _short_space():
        return is_gone(int(ours["pid"]), int(ours["start"]))
    return bool(ours) and time.time() - entry.stat(follow_symlinks=False).st_mtime > FOREIGN_SECONDS


def _short_space() -> str:
    return hashlib.sha256(process_space().encode()).hexdigest()[:8]


@functools.cache
def process_space() -> str:
    """Common to processes that see each other by their numbers: the boot and the PID namespace. Unique if the kernel
    does not tell, as without /proc.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # Containers on one machine have separate process numbers, and a reboot starts them again.
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return str(ULID())


def process_start(pid: int) -> int | None:
    """Start of a process in ticks since boot, independent of the clock; None if absent or invisible."""
    try:
        return _start_of(pid)
    except OSError:
        return None


def is_gone(pid: int, start: int | None) -> bool:
    """Whether the process of this number and start has ended; False for a process hidden from this user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # of another user
        pass
    try:
        return _start_of(pid) != start
    except OSError:
        return False


def _start_of(pid: int) -> int | None:
    """Like `process_start`; None for an ended process. Raises: OSError."""
    # The name in parentheses may contain spaces and parentheses: read from the last one on.
    state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    # proc(5): field 22 is starttime; the state, here split off, is field 3. Zombies and the dead write nothing more.
    return None if state in b"ZX" else int(fields[18])


_REFUSALS = (EACCES, EPERM, EINVAL, ENOTSUP, ENOSYS)
"""Errors of an unreadable folder, or of a file system that cannot flush folders; disk faults are not among them."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path, renamed to `path` when the block succeeds; missing folders are created.

    Raises: ArtifactError when a file cannot be written, in the block or after it.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_in(path.parent)
        yield temporary
        with temporary.open("rb") as file:
            # Without it a power cut after the rename could leave the new name on an empty file.
            os.fsync(file.fileno())
        # rename(2) within one folder is atomic: readers see the old or the new file.
        temporary.replace(path)
        # The rename itself becomes durable with the folder.
        sync_folder(path.parent)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Check that a file can be written, before computing its content. Raises: ArtifactError."""
    # As long as the file's own name, so that a name beyond the file system's limit (255 bytes) fails now.
    probe = path.with_name(f".{uuid4().hex}".ljust(len(os.fsencode(path.name)), "-"))
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        # A real write, since permission bits say nothing about read-only mounts, quotas or network shares.
        probe.open("x").close()
        probe.unlink()
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists") from error


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file; concurrent readers get the old or the new file. Raises: ArtifactError."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable, if its permissions and the file system allow it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
