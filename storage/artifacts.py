"""Artifact store: named files under a key. A key is complete or absent, and its contents are never replaced.

    root/artifacts/<key>/<name>      the files
    root/artifacts/<key>.json        their names, sizes and checksums; written last, it commits the key

Folders and object stores behave alike, and a reader never sees only some of the files.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.storage.documents import read_document
from retune.storage.store_url import open_blob_store

ARTIFACTS = "artifacts"

# Begins with a letter or digit: no "..", no hidden file, no option of a command; 128 letters fit every file system.
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CONTENT_KEY = re.compile(r"[0-9a-f]{64}")
_LISTED = ".json"


class Listed(TypedDict):
    """The entry of a file."""

    sha256: str


_CONTENTS = TypeAdapter(dict[str, Listed])


def content_key(files: Mapping[str, bytes]) -> str:
    """A key for these files, 64 hexadecimal letters: equal for equal names and contents."""
    digest = hashlib.sha256()
    for name in sorted(files):
        for text in (name.encode(), files[name]):
            # Each text after its length; otherwise ("ab", "c") and ("a", "bc") would have one hash.
            digest.update(len(text).to_bytes(8, "little"))
            digest.update(text)
    return digest.hexdigest()


def key_of(summary: Mapping[str, object] | None) -> str | None:
    """The content key of a run's files in the store, from its summary in the ledger; None for a run that stored none,
    as in a folder, where the summary has the path of the network.
    """
    key = (summary or {}).get("artifact")
    return key if isinstance(key, str) and _CONTENT_KEY.fullmatch(key) else None


class ArtifactStore:
    """Files by key below a folder or a URL: compiled networks, model snapshots. Nothing is unpickled."""

    def __init__(self, root: Path | str) -> None:
        self._blobs = open_blob_store(root)

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Store `files` (relative name to content) under `key`.

        All or nothing, durable on return. An existing key keeps its files; of two processes that store under one key at
        once the first to finish counts. Keys of content (`content_key`) have no such conflict.

        Raises:
            StoreError: the key or a name is unsafe, there is no file, or the store refused.
        """
        folder, listed = _paths(key)
        named = {_relative(name): data for name, data in files.items()}
        if not files:
            raise StoreError(f"artifact {key} has no files")
        if self._blobs.exists(listed):
            return
        contents = {name: {"size": len(data), "sha256": _digest(data)} for name, data in named.items()}
        # Files first, the list last: readers find a key by its list, so a killed writer leaves no key.
        self._blobs.put({f"{folder}/{name}": data for name, data in named.items()})
        self._blobs.create(listed, json.dumps(contents, sort_keys=True).encode())

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files stored under `key`, or None.

        Raises:
            StoreError: the key is unsafe, or the store refused.
            CorruptRecordError: a file is missing or changed.
        """
        sums = self._sums(key)
        return None if sums is None else {name: self._check(key, name, digest) for name, digest in sums.items()}

    def read(self, key: str, name: str) -> bytes | None:
        """File `name` stored under `key`, or None.

        Raises: like `get`.
        """
        digest = (self._sums(key) or {}).get(name)
        return None if digest is None else self._check(key, name, digest)

    def _sums(self, key: str) -> dict[str, str] | None:
        """The checksums of the files of a key, by name; None for an unknown key."""
        _, listed = _paths(key)
        try:
            contents = read_document(self._blobs, listed, _CONTENTS)
        except FileNotFoundError:
            return None
        return {_relative(name): each["sha256"] for name, each in contents.items()}

    def _check(self, key: str, name: str, digest: str) -> bytes:
        folder, listed = _paths(key)
        where = self._blobs.where(f"{folder}/{name}")
        try:
            data = self._blobs.read(f"{folder}/{name}")
        except FileNotFoundError:
            raise CorruptRecordError(f"{where} is missing, though {listed} lists it") from None
        if _digest(data) != digest:
            raise CorruptRecordError(f"{where} is damaged: {listed} has another checksum")
        return data

    def keys(self) -> tuple[str, ...]:
        names = (PurePosixPath(name) for name in self._blobs.files(ARTIFACTS))
        listed = (name for name in names if len(name.parts) == 2 and name.suffix == _LISTED)
        return tuple(sorted(name.name.removesuffix(_LISTED) for name in listed if _KEY.fullmatch(name.name)))


def _paths(key: str) -> tuple[str, str]:
    """The folder of a key's files and the name of their list."""
    if not _KEY.fullmatch(key):
        raise StoreError(f"{key!r} cannot be an artifact key: letters, digits, dot, dash, underscore")
    return f"{ARTIFACTS}/{key}", f"{ARTIFACTS}/{key}{_LISTED}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _relative(name: str) -> str:
    # "/" and ".." would write outside the key's folder, and names may come from another machine.
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise StoreError(f"{name!r} cannot be a file of an artifact: a relative path without '..' is needed")
    return path.as_posix()
