"""In: a device of this machine. Out: the right to time on it. Always: held by one process at a time; given back by
whatever ends that process.

The kernel's lock on a file keeps processes of this machine apart, those of different users too. On a Prefect server
there is besides a global concurrency limit of one slot for the device, which people see and can close: with no slot
left nothing is timed. It is asked for strictly, so a limit that somebody removed is an error and no silence.
"""

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

from retune.compiler import config
from retune.compiler.errors import MeasureError
from retune.compiler.measure.cuda_runner import gpu_of_key

LEASE_SECONDS = 60.0
"""So long a slot stays taken after the process that held it was killed; Prefect takes no shorter time."""


PROCESSOR = "cpu"


def lane_of(key: str) -> str:
    """Which device of this machine a worker of a fleet that has this key holds while it times: every GPU is one, and
    the processor is one, whatever its key.
    """
    gpu = gpu_of_key(key)
    return PROCESSOR if gpu is None else f"cuda:{gpu}"


def lane_name(device: str = PROCESSOR) -> str:
    """The limit of a device of this machine; `cuda` is GPU number 0."""
    gpu = gpu_of_key(device)
    return f"retune-lane-{_safe(config.host_name())}-{_safe(device if gpu is None else lane_of(device))}"


def ensure_limit(name: str, slots: int = 1) -> bool:
    """See to it that Prefect has a limit of that name; one that is there is left as it is. Whether it was made."""
    wanted = GlobalConcurrencyLimitCreate(name=name, limit=slots, active=True)
    with get_client(sync_client=True) as client:
        try:
            client.create_global_concurrency_limit(wanted)
        except ObjectAlreadyExists:
            return False
    return True


@contextmanager
def device_lane(device: str = PROCESSOR, *, limited: bool = False) -> Iterator[None]:
    """Hold a device of this machine; `limited` also by the limit on the Prefect server.

    Raises: ConcurrencySlotAcquisitionError when that limit does not exist; MeasureError when there can be no lock.
    """
    name = lane_name(device)
    with locked(Path(tempfile.gettempdir()) / f"{name}.lock"):
        if not limited:
            yield
            return
        with concurrency(name, occupy=1, strict=True, lease_duration=LEASE_SECONDS):
            yield


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the kernel's lock on a file, which is made where there is none and never written.

    Its folder is open to everybody, its name is no secret, and all users of the machine have to meet there: so nothing
    but an empty file of its own is taken for the lock, least of all a link to somewhere else.
    Raises: MeasureError.
    """
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(path, handle):  # else it was tidied up meanwhile, and others lock another file of that name
                yield
                return
        finally:
            os.close(handle)


def _opened(path: Path) -> int:
    """A handle of the file to lock; anybody may open it, and only to look. Raises: MeasureError."""
    safe = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            try:
                handle = os.open(path, safe)
            except FileNotFoundError:
                handle = os.open(path, safe | os.O_CREAT | os.O_EXCL, 0o444)
        except FileExistsError:  # another process was quicker
            continue
        except OSError as error:
            raise MeasureError(f"{path} cannot be locked ({error.strerror}): remove it, nothing is lost") from error
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_size == 0:
            return handle
        os.close(handle)
        raise MeasureError(f"{path} is not the empty file that processes of this machine lock: remove it")


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _safe(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
