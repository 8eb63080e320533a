"""Claims on folders of an object store: of several processes that want to own a folder, one does.

An object store has no locks that the kernel drops when a process dies. So an owner creates a numbered object, its
claim, and marks it as free at the end. Once a claim is free, or its process is known to be gone, a successor creates
the next number if it does not exist: of several successors one wins. The claim of a process of another machine stays
until a person deletes it: a process that is suspended looks like one that is gone, and both would own the folder.
"""

import contextlib
import json
import logging
import os
import platform
import re
from typing import Annotated

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.compiler.runtime.temporaries import is_gone, process_space, process_start
from retune.storage.blob_store import BlobStore, busy
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
