"""Leases on folders of an object store: of two processes that both believe to own one, one soon finds out.

An object store has no locks that the kernel drops when a process dies. So an owner puts a numbered object, its claim,
and renews it every few seconds. A claim is void when its owner gave it up, when its process is known to be gone, or
when it is not renewed while another process watches. The successor puts the next number, if it does not exist, so of
several successors one wins. No clock of one machine is compared with that of another.

An owner that was suspended for so long that it was succeeded ends its process when it resumes.
"""

import contextlib
import json
import logging
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from retune.compiler.errors import CorruptRecordError, StoreError
from retune.compiler.runtime.temporaries import is_gone, process_space, process_start
from retune.storage.blob_store import busy
from retune.storage.documents import Count, parse_document
from retune.storage.files import new_id

# A beat is one put and one list request, so a night costs some thousand; six may fail before the lease is void.
BEAT_SECONDS = 5.0
"""How often an owner renews its claim."""
PATIENCE_SECONDS = 30.0
"""A claim that was not renewed for so long, watched by one process, is void."""

logger = logging.getLogger(__name__)


_NUMBER = re.compile(r"\d{8,18}")


class Claim(TypedDict):
    """What an owner says of itself."""

    owner: str
    beat: Count
    is_free: bool
    host: str
    space: str
    pid: Annotated[int, Field(ge=0, lt=2**31)]
    born: Count | None


_CLAIM = TypeAdapter(Claim)


class Objects(Protocol):
    """The part of a blob store that leases need."""

    def create(self, name: str, data: bytes) -> bool: ...
    def put(self, files: Mapping[str, bytes]) -> None: ...
    def read(self, name: str) -> bytes: ...
    def files(self, folder: str) -> list[str]: ...
    def remove(self, names: list[str]) -> None: ...


class Lease:
    """A claim that is renewed by a thread until it is closed."""

    def __init__(self, objects: Objects, folder: str, number: int, claim: dict[str, Any]) -> None:
        self._objects, self._folder, self._number, self._claim = objects, folder, number, claim
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease {folder}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the lease up, so that the next owner need not wait."""
        if self._closed.is_set():
            return
        self._closed.set()
        # Joined before the last put, or a renewal in flight could overwrite `is_free`.
        self._thread.join()
        try:
            self._put({**self._claim, "is_free": True})
        except StoreError as error:
            logger.warning("a lease could not be given up, the next run waits for %g s: %s", PATIENCE_SECONDS, error)

    def _renew(self) -> None:
        renewed = time.monotonic()
        # In a separate thread: the main one may be busy in native code for longer than a lease lasts.
        while not self._closed.wait(BEAT_SECONDS):
            try:
                if _highest(self._objects, self._folder) > self._number:
                    self._end("another process has taken this run over, since this one did not answer for so long")
                    return
                self._claim["beat"] += 1
                self._put(self._claim)
                renewed = time.monotonic()
            except StoreError as error:
                logger.warning("a lease could not be renewed: %s", error)
                if time.monotonic() - renewed > PATIENCE_SECONDS:
                    self._end("the store cannot be reached, and another process may take this run over")
                    return

    def _put(self, claim: dict[str, Any]) -> None:
        self._objects.put({_name(self._folder, self._number): json.dumps(claim).encode()})

    def _end(self, reason: str) -> None:
        logger.error("stopped: %s", reason)
        self._closed.set()
        # A signal, since an exception in this thread would not reach the main one.
        os.kill(os.getpid(), signal.SIGTERM)


def acquire(objects: Objects, folder: str) -> Lease:
    """Own `folder`. Waits for up to `PATIENCE_SECONDS` for a sign of life of an owner that is not known to be gone.

    Raises: StoreError when another process owns it, or the store refuses.
    """
    claim = {"owner": new_id(), "beat": 0, "is_free": False, **_process()}
    # Optimistic concurrency: read the highest number, then create the next; who loses the create starts over.
    while True:
        number = _highest(objects, folder)
        if number:
            _await_end(objects, folder, number)
        mine = _name(folder, number + 1)
        try:
            # a request that is repeated for want of an answer may find the claim that it has put itself
            if objects.create(mine, json.dumps(claim).encode()) or _is_owned(objects, mine, claim):
                # Older claims are void once a higher one exists; removing them only tidies up.
                objects.remove([name for old, name in _claims(objects, folder).items() if old <= number])
                return Lease(objects, folder, number + 1, claim)
        except BaseException:
            _withdraw(objects, mine, claim)
            raise


def _is_owned(objects: Objects, name: str, claim: Mapping[str, Any]) -> bool:
    """Whether the claim of that name was put by the owner of `claim`. Raises: StoreError."""
    try:
        return bool(parse_document(objects.read(name), _CLAIM, name)["owner"] == claim["owner"])
    except (FileNotFoundError, CorruptRecordError):
        return False


def _withdraw(objects: Objects, name: str, claim: Mapping[str, Any]) -> None:
    """Give up a claim that became no lease, if it was put at all: it is not renewed, and others would wait for it."""
    with contextlib.suppress(StoreError):
        if _is_owned(objects, name, claim):
            objects.put({name: json.dumps({**claim, "is_free": True}).encode()})


def _await_end(objects: Objects, folder: str, number: int) -> None:
    """Return when claim `number` is void or succeeded. Raises: StoreError when its owner is alive."""
    # Own elapsed time against beats that advance: no clock of the owner's machine is read.
    end = time.monotonic() + PATIENCE_SECONDS
    beat = None
    while time.monotonic() < end:
        try:
            name = _name(folder, number)
            claim = parse_document(objects.read(name), _CLAIM, name)
        except (FileNotFoundError, CorruptRecordError):
            return
        if claim["is_free"] or _is_gone(claim):
            return
        if _is_here(claim) or (beat is not None and claim["beat"] != beat):
            raise StoreError(busy(f"process {claim['pid']} of {claim['host']}"))
        beat = claim["beat"]
        # More often than owners beat, so a living one is noticed soon after its next beat.
        time.sleep(min(1.0, BEAT_SECONDS / 2))


def _process() -> dict[str, Any]:
    """What tells this process from every other one."""
    # A pid alone is reused by the kernel; with the time of its start it names one process of a machine.
    return {"host": platform.node(), "space": process_space(), "pid": os.getpid(), "born": process_start(os.getpid())}


def _is_here(claim: Mapping[str, Any]) -> bool:
    """Whether the owner is a process that this one can see, and alive."""
    return bool(claim["space"] == process_space() and claim["born"] == process_start(claim["pid"]))


def _is_gone(claim: Mapping[str, Any]) -> bool:
    """Whether the owner is known to be gone: this process would see it."""
    return bool(claim["space"] == process_space() and is_gone(claim["pid"], claim["born"]))


def _highest(objects: Objects, folder: str) -> int:
    return max(_claims(objects, folder), default=0)


def _claims(objects: Objects, folder: str) -> dict[int, str]:
    """The claims of a folder by number; other files there are ignored."""
    found = ((name.removeprefix(f"{folder}/"), name) for name in objects.files(folder))
    return {int(number): name for number, name in found if _NUMBER.fullmatch(number)}


def _name(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}"
