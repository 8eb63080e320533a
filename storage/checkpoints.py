"""Learned cost models, stored as bytes for later runs.

A resumed run finds the same checkpoint as when it began; checkpoints of other feature versions are ignored.
"""

import hashlib
import re
from datetime import timedelta
from pathlib import Path

from ulid import ULID

from retune.compiler.core.errors import CorruptRecordError
from retune.compiler.measure.record import MOMENTS
from retune.storage.files import ID, new_id
from retune.storage.layout import target_slug
from retune.storage.store_url import open_blob_store

# Several, not one: runs that began earlier still resume from the newest checkpoint before their horizon.
KEPT = 8
"""Checkpoints kept per device and version: each contains the useful part of its predecessors."""

_SUFFIX = ".npz"
_NAME = re.compile(rf"{ID}\.npz")


class CheckpointStore:
    """`root/lessons/<place>/features-<version>/<ulid>.npz`, where place is a target, a device and a number of threads,
    and `version` the features' version. A file never changes; new files displace the oldest.
    """

    def __init__(self, root: Path | str, target: str, device: str, threads: int, version: int) -> None:
        # Device names hold spaces and slashes; 32 bits of a hash suffice to tell a few machines apart.
        device_hash = hashlib.sha256(device.encode()).hexdigest()[:8]
        self._blobs = open_blob_store(root)
        self._folder = f"lessons/{target_slug(target)}-{device_hash}-{threads}/features-{version}"

    def save(self, data: bytes) -> str:
        """Store `data` as the newest checkpoint, whatever the clock says, and return its name.

        Raises: StoreError when it cannot be written.
        """
        known = self._names()
        name = f"{self._folder}/{_newer(known[-1]) if known else new_id()}{_SUFFIX}"
        self._blobs.put({name: data})
        # Listed again after the put, since other processes save too.
        self._blobs.remove(self._names()[:-KEPT])
        return name

    def newest(self, before: float) -> bytes | None:
        """The last checkpoint before a moment, in seconds since 1970, if any.

        Raises: StoreError when it cannot be read.
        """
        # By the id's time and not the file's: a writer does not control the times of an object store.
        names = [name for name in self._names() if _id(name).timestamp < before]
        try:
            return self._blobs.read(names[-1]) if names else None
        except FileNotFoundError:  # eight newer ones came at once
            return None
        except CorruptRecordError as error:
            self._blobs.quarantine(names[-1], error)
            return None

    @property
    def latest(self) -> float:
        """Time of the newest checkpoint, in seconds since 1970 by its machine's clock; 0 without any."""
        return max((_id(name).timestamp for name in self._names()), default=0.0)

    def _names(self) -> list[str]:
        names = (name for name in self._blobs.files(self._folder) if _NAME.fullmatch(name, len(self._folder) + 1))
        return sorted(name for name in names if _id(name).timestamp < MOMENTS.stop)


def _id(name: str) -> ULID:
    return ULID.from_str(name[-26 - len(_SUFFIX) : -len(_SUFFIX)])


def _newer(name: str) -> str:
    """An id that sorts after a file's id, even if the clock was set back."""
    last, fresh = _id(name), ULID()
    # ULIDs sort by their milliseconds: one more keeps the order if the clock went back.
    return str(fresh if fresh > last else ULID.from_datetime(last.datetime + timedelta(milliseconds=1)))
