"""File access on object stores, through fsspec URLs. An object is put by one request, so it is complete or absent.

`s3://` needs the package s3fs, other schemes need theirs; `memory://` lives as long as the process. Listings are never
cached: what another machine has put is visible at once if the store guarantees that, as S3 does.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import fsspec
from fsspec.core import url_to_fs

from retune.compiler.core.errors import StoreError, install_hint
from retune.storage.blob_store import READING, BlobStore, Lock
from retune.storage.claims import acquire
from retune.storage.files import new_id

EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Our extra for a scheme, if any."""


class ObjectBlobStore(BlobStore):
    """A prefix in an object store."""

    def __init__(self, url: str) -> None:
        super().__init__(url.rstrip("/"))
        self._files, self._root = _open(self.url)

    def put(self, files: Mapping[str, bytes]) -> None:
        """See `BlobStore.put`: one request per file."""
        for name, data in files.items():
            with self._refusals("write", name):
                self._files.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """See `BlobStore.create`: the store itself rejects a second object of the name."""
        with self._refusals("write", name):
            try:
                # On S3 a put with `If-None-Match: *`: the store decides between several writers.
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        with self._refusals("read", name):
            return bytes(self._files.cat_file(self._path(name)))

    def read_end(self, name: str, count: int) -> bytes:
        """See `BlobStore.read_end`: one request, or two for a shorter object."""
        path = self._path(name)
        with self._refusals("read", name):
            start = max(0, self._files.info(path)["size"] - count)
            return bytes(self._files.cat_file(path, start=start))

    def open(self, name: str) -> IO[bytes]:
        with self._refusals("read", name):
            file: IO[bytes] = self._files.open(self._path(name), "rb")
            return file

    def files(self, folder: str) -> list[str]:
        """See `BlobStore.files`: a request per thousand objects."""
        with self._refusals("list", folder):
            try:
                paths = self._files.find(self._path(folder))
            except FileNotFoundError:
                return []
        start = len(self._root) + 1
        return [path[start:] for path in paths if path.startswith(f"{self._path(folder)}/")]

    def exists(self, name: str) -> bool:
        with self._refusals("look for", name):
            return bool(self._files.exists(self._path(name)))

    def move(self, name: str, to: str) -> None:
        """See `BlobStore.move`: a copy, then the removal of the source; in between both exist."""
        data = self.read(name)
        # In this order a crash leaves both, never none.
        self.put({to: data})
        self.remove([name])

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with self._refusals("remove", name):
                try:
                    self._files.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def add_line(self, name: str, line: bytes) -> None:
        """See `BlobStore.add_line`: objects cannot grow, so every line is an object below the name."""
        self.put({f"{name}/{new_id()}": line})

    def lines(self, name: str) -> list[bytes]:
        parts = []
        # Names are ULIDs, which sort in the order of the additions.
        for part in sorted(self.files(name)):
            try:
                parts.append(self.read(part))
            except FileNotFoundError:
                continue
        return parts

    def lock(self, name: str) -> Lock:
        """See `BlobStore.lock`: a claim, see `retune.storage.object_store`."""
        return acquire(self, name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _refusals(self, verb: str, name: str) -> Iterator[None]:
        """Turn any error of the store's library into an error that says what and where; a missing object to read stays
        missing.

        Libraries of object stores have exceptions of their own for a wrong key, a network failure, and so on.
        """
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and verb in READING:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(f"cannot {verb} {self.where(name)}: {reason}") from error


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path of its root there."""
    kind, sign, _ = url.partition("://")
    if not sign:  # fsspec would take the rest for a folder of this machine
        raise StoreError(f"{url}// names a kind of store only: give a place in it, such as s3://bucket/folder")
    try:
        # fsspec caches listings in the process: it would not see objects of other machines.
        files, root = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        how = install_hint(EXTRAS[kind]) if kind in EXTRAS else str(error)
        raise StoreError(f"a store at {url} needs a package that is not installed: {how}") from error
    except ValueError as error:
        known = ", ".join(sorted({"file", "s3", "memory"} & set(fsspec.available_protocols())))
        raise StoreError(f"{url} cannot be opened: {error}; {known} work, and what else fsspec knows") from error
    except Exception as error:  # each library has its own: refused connections, options that the URL lacks
        reason = " ".join(str(error).split()) or type(error).__name__
        raise StoreError(f"{url} cannot be opened: {reason}") from error
    return files, str(root).rstrip("/")
