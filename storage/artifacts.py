"""In: a key and named files. Out: a folder holding them. Always: complete, and never replaced."""

import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from compiler.errors import StoreError
from storage.files import make_folder, new_id, publish, sync_folder

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def content_key(files: Mapping[str, bytes]) -> str:
    """A key for these files: equal for equal names and contents, 64 hexadecimal letters."""
    digest = hashlib.sha256()
    for name in sorted(files):
        for text in (name.encode(), files[name]):
            digest.update(len(text).to_bytes(8, "little"))
            digest.update(text)
    return digest.hexdigest()


class ArtifactStore:
    """Folders by key under `root`: compiled networks, model snapshots. Nothing is unpickled."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    def put(self, key: str, files: Mapping[str, bytes]) -> Path:
        """Store `files` (relative name to content) under `key` and return the folder.

        All or nothing, durable on return. A key that exists keeps what it has.

        Raises:
            StoreError: the key or a name is unsafe, there is no file, or the medium refused.
        """
        final = self._folder(key)
        if final.is_dir():
            return final
        if not files:
            raise StoreError(f"artifact {key} has no files")
        work = self.root / f".{new_id()}.tmp"
        try:
            publish({work / _relative(name): data for name, data in files.items()})
            try:
                work.rename(final)
            except OSError as error:
                if not final.is_dir():
                    raise StoreError(f"cannot write {final}: {error.strerror}") from error
            sync_folder(self.root)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return final

    def get(self, key: str) -> Path | None:
        """The folder stored under `key`, or None."""
        folder = self._folder(key)
        return folder if folder.is_dir() else None

    def keys(self) -> tuple[str, ...]:
        """Every key, sorted."""
        make_folder(self.root)
        return tuple(sorted(path.name for path in self.root.iterdir() if _KEY.fullmatch(path.name)))

    def _folder(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise StoreError(f"{key!r} cannot be an artifact key: letters, digits, dot, dash, underscore")
        return self.root / key


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise StoreError(f"{name!r} cannot be a file of an artifact: a relative path without '..' is needed")
    return path
