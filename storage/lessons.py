"""In: what a run's cost model learned, as bytes. Out: the same for a later run.

Always: a run that is resumed finds what it found when it began.
"""

import hashlib
from pathlib import Path

from ulid import ULID

from compiler.errors import StoreError
from storage.files import new_id, publish
from storage.layout import target_slug

KEPT = 8
"""Files kept of a place: each holds what is worth knowing of those before."""


class LessonStore:
    """`root/lessons/<place>/<ulid>.npz`, a place being a target, a device and a number of threads. A file never
    changes; the oldest go as new ones come.
    """

    def __init__(self, root: Path | str, target: str, device: str, threads: int) -> None:
        place = hashlib.sha256(device.encode()).hexdigest()[:8]
        self._folder = Path(root).absolute() / "lessons" / f"{target_slug(target)}-{place}-{threads}"

    def save(self, data: bytes) -> Path:
        """Keep `data` as the newest of its place.

        Raises: StoreError when it cannot be written.
        """
        path = self._folder / f"{new_id()}.npz"
        publish({path: data})
        for old in self._paths()[:-KEPT]:
            old.unlink(missing_ok=True)
        return path

    def newest(self, before: float) -> bytes | None:
        """What was saved last before a moment, in seconds since 1970; None when there is nothing.

        Raises: StoreError when it cannot be read.
        """
        found = [path for path in self._paths() if ULID.from_str(path.stem).timestamp < before]
        if not found:
            return None
        try:
            return found[-1].read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {found[-1]}: {error.strerror}") from error

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("[!.]*.npz") if len(path.stem) == 26)
