"""File access on object stores, through fsspec URLs, and claims on their folders.

`s3://` needs the package s3fs, other schemes need theirs; `memory://` lives as long as the process. An object is put by
one request, so it is complete or absent. Listings are never cached: what another machine has put is visible at once if
the store guarantees that, as S3 does.

An object store has no locks that the kernel drops when a process dies. So an owner of a folder creates a numbered
object, its claim, and marks it as free at the end. Once a claim is free, or its process is known to be gone, a
successor creates the next number if it does not exist: of several successors one wins. The claim of a process of
another machine stays until a person deletes it: a process that is suspended looks like one that is gone, and both would
own the folder.
"""

import contextlib
import json
import logging
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Annotated, Any

import fsspec
from fsspec.core import url_to_fs
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from retune.compiler.core.errors import CorruptRecordError, StoreError, install_hint
from retune.compiler.runtime.atomic_write import is_gone, process_space, process_start
from retune.storage.blob_store import READING, BlobStore, Lock, busy
from retune.storage.documents import Count, parse_document
from retune.storage.files import new_id

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d{8,18}")


class Owner(TypedDict):
    """What an owner says of itself."""

    owner: str
    is_free: bool
    host: str
    space: str
    pid: Annotated[int, Field(ge=0, lt=2**31)]
    born: Count | None


_OWNER = TypeAdapter(Owner)


class Claim:
    """A claim of this process, until it is closed."""

    def __init__(self, objects: BlobStore, name: str, owner: Owner) -> None:
        self._objects, self._name, self._owner = objects, name, owner

    def close(self) -> None:
        """Let the next process own the folder."""
        try:
            _free(self._objects, self._name, self._owner)
        except StoreError as error:
            where = self._objects.where(self._name)
            logger.warning("%s stays claimed, and a run on another machine will name it: %s", where, error)


def acquire(objects: BlobStore, folder: str) -> Claim:
    """Own `folder`. Raises: StoreError when another process does, or the store refuses."""
    # A pid alone is reused by the kernel; with the time of its start it names one process of a machine.
    owner: Owner = {
        "owner": new_id(),
        "is_free": False,
        "host": platform.node(),
        "space": process_space(),
        "pid": os.getpid(),
        "born": process_start(os.getpid()),
    }
    # Optimistic concurrency: read the highest number, then create the next; who loses the create starts over.
    while True:
        claims = _claims(objects, folder)
        number = max(claims, default=0)
        if number:
            _require_void(objects, claims[number])
        name = f"{folder}/{number + 1:08d}"
        try:
            # A request that is repeated for want of an answer may meet the claim that it has put itself.
            if objects.create(name, json.dumps(owner).encode()) or _is_owned(objects, name, owner):
                # Others may have owned and freed this number since it was listed, and then removed it. The highest
                # claim is never removed, so it tells.
                if max(_claims(objects, folder)) == number + 1:
                    # Older claims are void once a higher one exists; removing them only tidies up.
                    objects.remove(list(claims.values()))
                    return Claim(objects, name, owner)
                _free(objects, name, owner)
        except BaseException:
            with contextlib.suppress(StoreError):  # the claim may not have been put at all
                _free(objects, name, owner)
            raise


def _is_owned(objects: BlobStore, name: str, owner: Owner) -> bool:
    """Whether `owner` has put the claim `name`. Raises: StoreError."""
    try:
        return parse_document(objects.read(name), _OWNER, name)["owner"] == owner["owner"]
    except (FileNotFoundError, CorruptRecordError):
        return False


def _free(objects: BlobStore, name: str, owner: Owner) -> None:
    """Mark the claim `name` as free if it is that of `owner`. Raises: StoreError."""
    if _is_owned(objects, name, owner):
        objects.put({name: json.dumps({**owner, "is_free": True}).encode()})


def _require_void(objects: BlobStore, name: str) -> None:
    """Check that the claim `name` holds no more. Raises: StoreError when its owner may be alive."""
    try:
        owner = parse_document(objects.read(name), _OWNER, name)
    except (FileNotFoundError, CorruptRecordError):
        return
    is_here = owner["space"] == process_space()
    if owner["is_free"] or (is_here and is_gone(owner["pid"], owner["born"])):
        return
    advice = "" if is_here else f"; if that process is gone, delete {objects.where(name)}"
    process = f"process {owner['pid']} of {owner['host']}"
    raise StoreError(f"{busy(process)}{advice}")


def _claims(objects: BlobStore, folder: str) -> dict[int, str]:
    """The claims of `folder` by number; other files there are ignored."""
    files = ((name.removeprefix(f"{folder}/"), name) for name in objects.files(folder))
    return {int(number): name for number, name in files if _NUMBER.fullmatch(number)}


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
