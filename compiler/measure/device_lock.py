"""The right to time on a device of this machine: the kernel's lock on a file.

It is held by one process at a time, of any user, and released when that process ends. A process that hangs keeps it:
those that wait say which one it is, since only a person can know whether to end it. What another user does with the
file stops no one for ever: after a warning a lock is taken that only this user's processes share.
"""

import fcntl
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from retune.compiler import config
from retune.compiler.errors import MeasureError
from retune.compiler.measure.cuda_runner import gpu_of_key

CPU = "cpu"

WAIT_SECONDS = 60.0
"""How long a process waits for a device before it says who holds it, and then again."""

OTHERS_SECONDS = 1800.0
"""How long a process waits for one of another user. A measurement takes minutes."""

_ADVICE = "remove it, or ask its owner or root to; nothing is lost"
_LOG = logging.getLogger(__name__)


def device_key(gpu: int | None = None) -> str:
    """The key of the CPU of this machine, or of its GPU of a number."""
    return CPU if gpu is None else f"cuda:{gpu}"


def lock_name(device: str = CPU) -> str:
    """The lock of the device of this machine that a worker of a fleet with this key times on: every GPU is one, and the
    CPU is one, whatever its key.
    """
    gpu = gpu_of_key(device)
    return f"retune-device-{_safe(config.host_name())}-{CPU if gpu is None else f'cuda-{gpu}'}"


def lock_path(device: str = CPU) -> Path:
    """The file that is locked."""
    # The one folder that all users of a machine can write to.
    return Path(tempfile.gettempdir()) / f"{lock_name(device)}.lock"


@contextmanager
def device_lock(device: str = CPU) -> Iterator[None]:
    """Hold a device of this machine. Raises: MeasureError when there can be no lock."""
    path, folder = lock_path(device), config.cache_folder()
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except MeasureError as error:
            if folder is None:
                raise
            _warn_once(f"{error}; until then processes of other users may disturb timings")
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / path.name))
        yield


@cache
def _warn_once(sentence: str) -> None:
    _LOG.warning(sentence)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the kernel's lock on a file, which is made where there is none and never written.

    Its folder is open to everybody, its name is no secret, and all users of the machine have to meet there: so nothing
    but an empty file of its own is taken for the lock, least of all a link to somewhere else.
    Raises: MeasureError.
    """
    while True:
        # flock belongs to the open file, so the kernel drops it when its process ends, however it ends.
        handle = _opened(path)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _wait(path, handle)
            if _is_at(path, handle):  # else it was tidied up meanwhile, and others lock another file of that name
                yield
                return
        finally:
            os.close(handle)


def _wait(path: Path, handle: int) -> None:
    """Wait for the lock, with a warning every `WAIT_SECONDS`. Raises: MeasureError where a process of another user does
    not give it back.
    """
    taken: Future[None] = Future()

    def take() -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # blocks, so that those who wait are served in order
            taken.set_result(None)
        except OSError as error:
            taken.set_exception(error)

    # A daemon, since the kernel's call cannot be ended: what it takes too late is closed with `handle`.
    threading.Thread(target=take, daemon=True).start()
    holder, began = "", time.monotonic()
    while True:
        try:
            return taken.result(WAIT_SECONDS)
        except TimeoutError:
            before, (holder, is_others) = holder, _holder_of(handle)
            began = began if holder == before else time.monotonic()
            if is_others and time.monotonic() - began > OTHERS_SECONDS:
                raise MeasureError(f"{path} is held by {holder} of another user: ask its owner to end it") from None
            _LOG.warning("waiting for %s, which %s holds: end that process if it hangs", path, holder)


def _holder_of(handle: int) -> tuple[str, bool]:
    """The process that holds the lock, as far as Linux says it in /proc/locks, and whether it may be another user's."""
    found = os.fstat(handle)
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        match line.split():
            case [_, "FLOCK", _, _, process, place, *_] if place == file:
                with suppress(OSError):
                    return f"process {process}", os.stat(f"/proc/{process}").st_uid != os.geteuid()
    return "a process", True


def _opened(path: Path) -> int:
    """A handle of the file to lock; anybody may open it, and only to look. Raises: MeasureError."""
    # Read-only suffices for flock, and the kernel refuses to open another user's file in a sticky folder with O_CREAT
    # (fs.protected_regular). O_NONBLOCK: opening a FIFO of that name must not block.
    safe = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            try:
                handle = os.open(path, safe)
            except FileNotFoundError:
                # O_EXCL: never a file or link that another user put there meanwhile.
                handle = os.open(path, safe | os.O_CREAT | os.O_EXCL, 0o444)
                os.fchmod(handle, 0o444)  # whatever the umask: other users open it too
        except FileExistsError:  # another process was quicker
            continue
        except OSError as error:
            raise MeasureError(f"{path} cannot be locked ({error.strerror}): {_ADVICE}") from error
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_size == 0:
            return handle
        os.close(handle)
        raise MeasureError(f"{path} is not the empty file that processes of this machine lock: {_ADVICE}")


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _safe(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
