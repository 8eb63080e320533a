"""Names for temporary files that identify the writer, so that leftovers of killed writers can be removed."""

import functools
import hashlib
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

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
    return folder / f".{os.urandom(13).hex().upper()}{writer}.tmp"


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
        return os.urandom(13).hex()


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
