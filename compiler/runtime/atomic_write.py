"""Atomic replacement of files: a path holds the old or the whole new file, even after a power cut."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EINVAL, EISDIR, ENOSYS, ENOTSUP, EPERM
from pathlib import Path
from uuid import uuid4

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.temporaries import temporary_in

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
