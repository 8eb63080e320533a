"""Names for temporary files that tell which process writes them, so that a later one removes what a killed one left."""

import functools
import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from ulid import ULID

FOREIGN_SECONDS = 7 * 86400.0
"""A temporary of a process that this one cannot see, as on another machine, is left over after so long."""

_OURS = re.compile(r"\.[0-9A-Z]{26}(?:-(?P<space>[0-9a-f]{8})-(?P<pid>\d{1,9})-(?P<start>\d{1,19}))?\.tmp")
_OLDER = re.compile(r"\.(?:.+\.)?[0-9a-f]{32}\.tmp")
"""What earlier versions called a temporary beside a compiled network."""


def temporary_in(folder: Path) -> Path:
    """A fresh name in a folder that exists. The first call for a folder removes what killed writers left there."""
    remove_abandoned(folder)
    space = hashlib.sha256(process_space().encode()).hexdigest()[:8]
    return folder / f".{ULID()}-{space}-{os.getpid()}-{process_start(os.getpid())}.tmp"


@functools.cache
def remove_abandoned(folder: Path) -> None:
    """Remove the temporaries of writers that are gone: this process would see them."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _is_abandoned(entry):
                with suppress(OSError):
                    os.unlink(entry)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    if not entry.name.endswith(".tmp"):
        return False
    ours = _OURS.fullmatch(entry.name)
    if ours and ours["space"] == hashlib.sha256(process_space().encode()).hexdigest()[:8]:
        return process_start(int(ours["pid"])) != int(ours["start"])
    known = ours or _OLDER.fullmatch(entry.name)
    return bool(known) and time.time() - entry.stat(follow_symlinks=False).st_mtime > FOREIGN_SECONDS


@functools.cache
def process_space() -> str:
    """What two processes have in common that see each other by their numbers: the boot and the space of numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"


def process_start(pid: int) -> int | None:
    """When a process began, in ticks since the boot, which no change of the clock touches; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
