"""In: what programs look like to the cost models of a device, as bytes. Out: the same for a run that goes on there.

Always: a cache. It may be deleted at any time; the oldest go as new ones come; what is damaged goes by itself.
"""

import hashlib
import logging
import re
import zlib
from pathlib import Path

from retune.compiler.errors import CorruptRecordError
from retune.storage.files import new_id
from retune.storage.layout import target_slug
from retune.storage.place import open_medium

KEPT_PROGRAMS = 65_536
"""Programs of a place and version that are kept, about a kilobyte each."""

_NAME = re.compile(r"(?P<id>[0-9A-Z]{26})-(?P<checksum>[0-9a-f]{8})-(?P<programs>\d{1,9})\.npz")

logger = logging.getLogger(__name__)


class LookStore:
    """`root/looks/<place>/features-<version>/<ulid>-<checksum>-<programs>.npz`, a place being a target, a device and a
    number of threads. A file never changes.
    """

    def __init__(self, root: Path | str, target: str, device: str, threads: int, version: int) -> None:
        place = hashlib.sha256(device.encode()).hexdigest()[:8]
        self._medium = open_medium(root)
        self._folder = f"looks/{target_slug(target)}-{place}-{threads}/features-{version}"

    def save(self, data: bytes, programs: int) -> None:
        """Keep what `programs` programs look like, and let go what is too old for its place. Raises: StoreError."""
        name = f"{self._folder}/{new_id()}-{zlib.crc32(data):08x}-{programs}.npz"
        self._medium.publish({name: data})
        held, old = 0, []
        for one, found in self._names():
            held += int(found["programs"])
            if held > KEPT_PROGRAMS and one != name:
                old.append(one)
        self._medium.remove(old)

    def load(self) -> list[bytes]:
        """All that is kept, the newest first. Raises: StoreError when it cannot be read."""
        whole = []
        for name, found in self._names():
            try:
                data = self._medium.read(name)
            except FileNotFoundError:  # another process has let it go
                continue
            except CorruptRecordError:
                data = b""
            if zlib.crc32(data) == int(found["checksum"], 16):
                whole.append(data)
            else:
                logger.info("%s is damaged and is removed: it can be made anew", self._medium.where(name))
                self._medium.remove([name])
        return whole

    def _names(self) -> list[tuple[str, re.Match[str]]]:
        """Files with the parts of their names, the newest first."""
        listed = sorted(self._medium.files(self._folder), reverse=True)
        found = ((name, _NAME.fullmatch(name.rpartition("/")[2])) for name in listed)
        return [(name, parts) for name, parts in found if parts is not None]
