"""Atomic, durable writes of files, and fresh identifiers."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ulid import ULID

from retune.compiler.core.errors import StoreError
from retune.compiler.runtime.atomic_write import sync_folder
from retune.compiler.runtime.temporaries import temporary_in

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of temporary names, which start with a dot, so no reader's pattern matches them."""

ID = r"[0-7][0-9A-HJKMNP-TV-Z]{25}"
"""The pattern of a ULID: 128 bits, so the first letter has three."""


def new_id() -> str:
    """A fresh ULID: sorts by time of creation, also within one millisecond of one process."""
    return str(ULID())


def put(files: Mapping[Path, bytes]) -> None:
    """Write every file under a temporary name, then rename them all.

    A failure while writing (disk full) leaves nothing visible. Each file is atomic; a kill between two renames shows a
    part of the group.
    Raises:
        StoreError: the file system refused.
    """
    pending: list[tuple[Path, Path]] = []
    try:
        for path, data in files.items():
            make_folder(path.parent)
            # In the same folder: a rename is atomic only within one file system.
            temporary = temporary_in(path.parent)
            pending.append((temporary, path))
            write_through(temporary, data)
        for temporary, path in pending:
            # Only renames are left: they need no space, so a full disk cannot interrupt them.
            temporary.replace(path)
        # One flush per folder makes all its new names durable.
        for folder in dict.fromkeys(path.parent for path in files):
            sync_folder(folder)
    except OSError as error:
        raise StoreError(f"cannot write {error.filename or path}: {error.strerror}") from error
    finally:
        for temporary, _ in pending:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_through(path: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk."""
    # "x": a temporary is the writer's own, so two of one name are a fault and never overwrite each other.
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        # Before the rename: a file system may order the rename before the data.
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """Create a folder and its parents, each durable in its parent."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    # Another process may make the folder at the same time.
    path.mkdir(exist_ok=True)
    # A folder that is not durable in its parent would take its files with it.
    sync_folder(path.parent)
