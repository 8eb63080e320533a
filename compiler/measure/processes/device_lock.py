"""The exclusive right to time on a device of this machine: a lock of the operating system on a file.

One process at a time has it, of any user; it is released when that process ends. A hanging process keeps it: the
waiting processes name it, since only a person can decide whether to end it. Another user cannot block it for ever:
after a warning a lock is taken that only this user's processes share.
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

from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.runner import gpu_of_key

CPU = "cpu"

WAIT_SECONDS = 60.0
"""Seconds between warnings of a process that waits for a device."""

OTHERS_SECONDS = 1800.0
"""Longest wait for a process of another user. A measurement takes minutes."""

_ADVICE = "remove it, or ask its owner or root to; nothing is lost"
_LOG = logging.getLogger(__name__)


def device_key(gpu: int | None = None) -> str:
    """The key of the CPU of this machine, or of GPU number `gpu`."""
    return CPU if gpu is None else f"cuda:{gpu}"


def lock_name(device: str = CPU) -> str:
    """The name of the lock of a fleet's device key: one for each GPU of this machine, and one for the CPU."""
    gpu = gpu_of_key(device)
    return f"retune-device-{_safe(config.host_name())}-{CPU if gpu is None else f'cuda-{gpu}'}"


def lock_path(device: str = CPU) -> Path:
    # The only folder that all users of a machine can write to.
    return Path(tempfile.gettempdir()) / f"{lock_name(device)}.lock"


@contextmanager
def device_lock(device: str = CPU) -> Iterator[None]:
    """Lock a device of this machine. Raises: MeasureError when there can be no lock."""
    path, folder = lock_path(device), config.cache_folder()
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_device(path))
        except MeasureError as error:
            if folder is None:
                raise
            _warn_once(f"{error}; until then processes of other users may disturb timings")
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_device(folder / path.name))
        yield


@cache
def _warn_once(sentence: str) -> None:
    _LOG.warning(sentence)


@contextmanager
def lock_device(path: Path) -> Iterator[None]:
    """Hold the kernel's lock on a file, which is created if missing and never written.

    All users share its folder and know its name: so only an empty regular file is accepted, never a link.
    Raises: MeasureError.
    """
    while True:
        # flock belongs to the open file, so the kernel drops it when its process ends, however it ends.
        handle = _open(path)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _wait(path, handle)
            if _is_at(path, handle):  # otherwise it was deleted meanwhile, and others lock another file of that name
                yield
                return
        finally:
            os.close(handle)


def _wait(path: Path, handle: int) -> None:
    """Wait for the lock, with warnings. Raises: MeasureError where another user's process does not release it."""
    acquired: Future[None] = Future()

    def acquire() -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # blocks, so that waiting processes are served in order
            acquired.set_result(None)
        except OSError as error:
            acquired.set_exception(error)

    # A daemon, since the kernel's call cannot be ended: a lock acquired too late is closed with `handle`.
    threading.Thread(target=acquire, daemon=True).start()
    holder, began = "", time.monotonic()
    while True:
        try:
            return acquired.result(WAIT_SECONDS)
        except TimeoutError:
            last_holder, (holder, is_others) = holder, _holder_of(handle)
            began = began if holder == last_holder else time.monotonic()
            if is_others and time.monotonic() - began > OTHERS_SECONDS:
                raise MeasureError(f"{path} is held by {holder} of another user: ask its owner to end it") from None
            _LOG.warning("waiting for %s, which %s holds: end that process if it hangs", path, holder)


def _holder_of(handle: int) -> tuple[str, bool]:
    """The process that holds the lock, from /proc/locks, and whether it may be another user's."""
    status = os.fstat(handle)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        match line.split():
            case [_, "FLOCK", _, _, process, lock_file, *_] if lock_file == file:
                with suppress(OSError):
                    return f"process {process}", os.stat(f"/proc/{process}").st_uid != os.geteuid()
    return "a process", True


def _open(path: Path) -> int:
    """A read-only handle of the lock file, which everybody may open. Raises: MeasureError."""
    # Read-only suffices for flock, and the kernel refuses to open another user's file in a sticky folder with O_CREAT
    # (fs.protected_regular). O_NONBLOCK: opening a FIFO of that name must not block.
    safe = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            try:
                handle = os.open(path, safe)
            except FileNotFoundError:
                # O_EXCL: never a file or link that another user created meanwhile.
                handle = os.open(path, safe | os.O_CREAT | os.O_EXCL, 0o444)
                os.fchmod(handle, 0o444)  # whatever the umask: other users open it too
        except FileExistsError:  # another process was faster
            continue
        except OSError as error:
            raise MeasureError(f"{path} cannot be locked ({error.strerror}): {_ADVICE}") from error
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and status.st_size == 0:
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
