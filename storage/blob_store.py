"""The files of a store: a folder, or a prefix in an object store. A name holds a whole file or nothing.

A blob store is a tree of files below one root, a folder or a prefix in an object store (`retune.storage.object_store`).
Names are relative paths with slashes. Both kinds keep the same promises, see docs/reference/storage.md.
"""

import errno
import fcntl
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from retune.compiler.core.errors import CorruptRecordError, StoreError, without_passwords
from retune.compiler.runtime.atomic_write import sync_folder
from retune.compiler.runtime.temporaries import temporary_in
from retune.storage.files import make_folder, put, write_through

logger = logging.getLogger(__name__)

# For these a missing file is an answer (a compaction took it), for other verbs a fault of the store.
READING = ("read", "move")
"""Verbs on a file that must exist."""

QUARANTINE = "quarantine"
"""The folder for unreadable files."""


class Lock(Protocol):
    """A resource that one process owns until it closes it or dies."""

    def close(self) -> None:
        """Release it."""


class BlobStore(ABC):
    """Files by name below `url`, for any number of processes and threads at once."""

    def __init__(self, url: str) -> None:
        self.url = url

    def where(self, name: str = "") -> str:
        """The full path or URL of a name, for people: without a password."""
        return without_passwords(f"{self.url}/{name}" if name else self.url)

    @abstractmethod
    def put(self, files: Mapping[str, bytes]) -> None:
        """Store every file, in this order; durable on return. Each is whole or absent at any moment.

        Raises: StoreError; then some of the new files may exist.
        """

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Store a file unless the name exists; return whether it was stored. Of concurrent creators one succeeds.

        Raises: StoreError.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A whole file. Raises: FileNotFoundError, StoreError; CorruptRecordError for a pipe and other non-files."""

    @abstractmethod
    def read_end(self, name: str, count: int) -> bytes:
        """The last `count` bytes of a file, or all of a shorter file. Raises: FileNotFoundError, StoreError."""

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Open a file to read parts of it. Raises: FileNotFoundError, StoreError."""

    @abstractmethod
    def files(self, folder: str) -> list[str]:
        """The names of all files below a folder, at any depth and in any order; empty for a missing folder.

        Raises: StoreError.
        """

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether the file exists. Raises: StoreError."""

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Rename a file. Raises: FileNotFoundError, StoreError."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files; missing ones are ignored. Raises: StoreError."""

    @abstractmethod
    def add_line(self, name: str, line: bytes) -> None:
        """Append `line`, which has no line break, to the lines of `name`; durable on return. Raises: StoreError."""

    @abstractmethod
    def lines(self, name: str) -> list[bytes]:
        """The lines added under a name, oldest first; the last line of a killed writer may be cut off.

        Raises: StoreError.
        """

    @abstractmethod
    def lock(self, name: str) -> Lock:
        """Own `name` until the lock is closed or this process dies.

        Raises: StoreError, which names the owner, when another process owns it.
        """

    def quarantine(self, name: str, reason: Exception) -> None:
        """Move an unreadable file to the folder `quarantine`, with its path, and warn once."""
        try:
            self.move(name, f"{QUARANTINE}/{name}")
        except FileNotFoundError:
            logger.warning("%s was unreadable and another process has set it aside", self.where(name))
        except StoreError as error:
            logger.warning("ignoring %s, which cannot be set aside either (%s): %s", self.where(name), error, reason)
        else:
            logger.warning("set aside an unreadable file as %s: %s", self.where(f"{QUARANTINE}/{name}"), reason)


class LocalBlobStore(BlobStore):
    """A folder. Files are written under temporary names, flushed to the disk and renamed."""

    def __init__(self, root: Path | str) -> None:
        # Absolute: the working folder may change, and a pickled store must mean the same folder in another process.
        self.root = Path(root).absolute()
        super().__init__(str(self.root))
        with self._refusals("open", ""):
            if self.root.exists() and not self.root.is_dir():
                raise StoreError(f"{self.root} is not a folder, so it cannot hold a record store")

    def put(self, files: Mapping[str, bytes]) -> None:
        """See `BlobStore.put`. All files are written before the first is renamed, so a full disk shows none."""
        put({self.root / name: data for name, data in files.items()})

    def create(self, name: str, data: bytes) -> bool:
        """See `BlobStore.create`: linking a finished file fails if the name exists."""
        path = self.root / name
        with self._refusals("write", name):
            make_folder(path.parent)
            temporary = temporary_in(path.parent)
            try:
                write_through(temporary, data)
                # link(2) fails if the name exists, atomically; rename would replace the file.
                os.link(temporary, path)
                # The new name is durable only with the folder's entry.
                sync_folder(path.parent)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
        return True

    def read(self, name: str) -> bytes:
        with self.open(name) as file, self._refusals("read", name):
            return file.read()

    def read_end(self, name: str, count: int) -> bytes:
        with self.open(name) as file, self._refusals("read", name):
            file.seek(max(0, file.seek(0, os.SEEK_END) - count))
            return file.read()

    def open(self, name: str) -> IO[bytes]:
        path = self.root / name
        with self._refusals("read", name):
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
            except OSError as error:
                # other errors, as of an unreachable share, may pass: the file is not to blame
                if error.errno == errno.ENXIO or (error.errno in (errno.ENOENT, errno.ELOOP) and path.is_symlink()):
                    raise CorruptRecordError(f"{path} cannot be read: it is a socket, or a link to nothing") from None
                raise
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise CorruptRecordError(f"{path} cannot be read: it is no regular file")
            return os.fdopen(handle, "rb")

    def files(self, folder: str) -> list[str]:
        """See `BlobStore.files`; includes temporary files."""
        names: list[str] = []
        with self._refusals("list", folder):
            self._walk(folder, names)
        return names

    def _walk(self, folder: str, names: list[str]) -> None:
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}"
                    # A link to an ancestor folder would recurse without end.
                    if entry.is_dir(follow_symlinks=False) or _is_linked_folder(entry):
                        self._walk(name, names)
                    else:
                        names.append(name)
        # Folders may disappear during the walk: a missing folder holds no files.
        except (FileNotFoundError, NotADirectoryError):
            return

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def move(self, name: str, to: str) -> None:
        with self._refusals("move", name):
            make_folder((self.root / to).parent)
            # A rename within one file system is atomic: readers find the file under one of the names.
            (self.root / name).rename(self.root / to)

    def remove(self, names: Iterable[str]) -> None:
        paths = [self.root / name for name in names]
        for path in paths:
            with self._refusals("remove", path.relative_to(self.root).as_posix()):
                path.unlink(missing_ok=True)
        # One flush per folder, after all its removals.
        for folder in dict.fromkeys(path.parent for path in paths):
            if folder.is_dir():
                sync_folder(folder)

    def add_line(self, name: str, line: bytes) -> None:
        with self._refusals("write", name):
            make_folder((self.root / name).parent)
            with (self.root / name).open("ab+", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                # "a+" may read anywhere, but O_APPEND sets each write to the end at that moment.
                file.seek(max(0, end - 1))
                broken = b"" if file.read(1) in (b"", b"\n") else b"\n"  # left by a killed writer
                text = broken + line + b"\n"
                try:
                    # An unbuffered write may be short on a full disk; the partial line is cut off again, so the file
                    # ends with a whole line.
                    if file.write(text) < len(text):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    # A line counts as stored once it survives a power cut.
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)
                    raise

    def lines(self, name: str) -> list[bytes]:
        try:
            return self.read(name).splitlines()
        except FileNotFoundError:
            return []

    def lock(self, name: str) -> Lock:
        """See `BlobStore.lock`: an advisory kernel lock, inherited by forked processes but not by executed ones."""
        with self._refusals("lock", name):
            make_folder((self.root / name).parent)
            # Not "w": opening must not empty the file, which names the owner for the error below.
            file = (self.root / name).open("a+")
            try:
                # The kernel releases it when the process dies in any way: no stale lock has to be broken.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                # For the error of the next process; the lock itself does not depend on it.
                file.write(str(os.getpid()))
                file.flush()
            except BlockingIOError:
                file.seek(0)
                owner = file.read() or "unknown"
                file.close()
                raise StoreError(busy(f"process {owner}")) from None
            except OSError:
                file.close()
                raise
        return file

    @contextmanager
    def _refusals(self, verb: str, name: str) -> Iterator[None]:
        """Turn errors of the file system into an error that says what and where; a missing file stays missing."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and verb in READING:
                raise
            raise StoreError(f"cannot {verb} {self.root / name}: {error.strerror or error}") from error


def _is_linked_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a link to a folder outside of its own ancestors."""
    return (
        entry.is_symlink()
        and os.path.isdir(entry)
        and not Path(os.path.realpath(os.path.dirname(entry.path))).is_relative_to(os.path.realpath(entry))
    )


def busy(owner: str) -> str:
    """The message to a process that wants the run of `owner`."""
    return f"{owner} is working on this run already, whatever its limits: wait for it, stop it, or use another --store"
