"""Calls functions, named by dotted path, in a worker process, which may crash or hang.

A call ends with a result, the function's exception, `WorkerTimeoutError` or `WorkerLostError`; after either of the last
two the process and its children are gone, and the next call starts a fresh process. No worker outlives its parent.

Why not `multiprocessing`: its spawned children import the caller's main module again, so a plain script would need a
main guard before it could measure, and forked children inherit locks and OpenMP threads. Why not a pool library (loky,
pebble, concurrent.futures): a dead or late worker breaks the pool or loses its finished results; here a stream of
results survives up to the item that killed its worker.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, Self

from retune.compiler.core.closing import Closing
from retune.compiler.core.config import child_environment
from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.processes.worker_main import END, ERROR, ITEM

# Enough for the last output of a crash; the text becomes part of a record.
_STDERR_BYTES = 8192
# Between EOF on the pipe and the end of the process the kernel frees its memory, which takes seconds for gigabytes.
_GRACE_SECONDS = 5.0
_SEND_SECONDS = 120
# Signals that a program does not raise by its own fault, unlike SIGSEGV, SIGILL, SIGBUS, SIGFPE and SIGABRT.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}


class WorkerFailedError(MeasureError):
    """A worker did not answer. `from_outside`: its task is not the cause."""

    from_outside = False


class WorkerStartError(WorkerFailedError):
    """A worker could not be started."""

    from_outside = True


class WorkerTimeoutError(WorkerFailedError):
    """A call took too long; its worker was killed."""


class WorkerLostError(WorkerFailedError):
    """A worker ended in the middle of a call. `signal_name` is empty when it exited by itself."""

    def __init__(self, code: int | None, stderr: str) -> None:
        number = -code if code is not None and code < 0 else 0
        is_signal = number in signal.valid_signals()
        self.signal_name = (signal.Signals(number).name if is_signal else f"signal {number}") if number else ""
        self.from_outside = number in _FROM_OUTSIDE
        self.code = code
        self.stderr = stderr
        ending = f"was ended by {self.signal_name}" if number else f"exited with code {code}"
        super().__init__(f"the worker process {ending}" + (f"; its last output:\n{stderr}" if stderr else ""))

    def __reduce__(self) -> tuple[type[Self], tuple[int | None, str]]:
        return type(self), (self.code, self.stderr)


@dataclass(slots=True)
class _Running:
    """One started worker."""

    process: subprocess.Popen[bytes]
    connection: "Connection[Any, Any]"
    stderr: IO[bytes]
    end: Callable[[], object]
    uses: int = 0
    mark: int = 0

    def last_output(self) -> str:
        """The worker's output since the current call began, at most the last 8 KiB."""
        end = os.fstat(self.stderr.fileno()).st_size
        start = max(self.mark, end - _STDERR_BYTES)
        return os.pread(self.stderr.fileno(), end - start, start).decode(errors="replace").strip()


@dataclass(eq=False)
class WorkerProcess(Closing):
    """A process that runs functions for its owner, singly; started by the first call.

    `initializer` (a dotted path, with `initargs`) runs first in every process. `renew` ends a process after
    `maximum_uses` results, which bounds its leaks (0: never). `environment` overrides this process's own. Not to be
    shared between threads.
    """

    initializer: str = ""
    initargs: tuple[object, ...] = ()
    maximum_uses: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 120.0
    _running: _Running | None = field(default=None, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def call(self, function: str, *args: object, timeout_s: float | None = None) -> Any:
        """Run `function` (`package.module:name`) and return its result.

        Raises: the function's own exception, with the worker's traceback as a note; WorkerTimeoutError;
        WorkerLostError; WorkerStartError.
        """
        results = list(self.stream(function, *args, timeout_s=timeout_s))
        return results[-1] if results else None

    def stream(self, function: str, *args: object, timeout_s: float | None = None) -> Generator[Any, None, None]:
        """Run `function`, which returns an iterator, and yield its items as they come. `timeout_s` is per item.

        Closing the stream early ends the worker. Raises: as `call`.
        """
        running = self._ready()
        running.mark = os.fstat(running.stderr.fileno()).st_size
        finished = False
        try:
            self._send(running, (function, args))
            while True:
                kind, value = self._receive(running, timeout_s, function)
                if kind != ITEM:
                    finished = True
                    break
                running.uses += 1
                yield value
        finally:
            if not finished:
                self.kill()
        if kind == ERROR:
            _raise_remote(*value)

    def renew(self) -> None:
        """End a process that has reached its maximum uses, between dependent pieces of work: its state is lost."""
        if self._running and self.maximum_uses and self._running.uses >= self.maximum_uses:
            self.kill()

    @property
    def pid(self) -> int | None:
        """Process id of the running worker, None when there is none."""
        return self._running.process.pid if self._running else None

    def kill(self) -> None:
        """End the worker and its children now. The next call starts a fresh worker."""
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def stop(self) -> None:
        """From another thread: make the current call fail, and every later call until `close`."""
        # Set before the signal: a worker that is being started sees it and ends itself.
        self._stopped = True
        running = self._running
        if running is not None:
            _signal_group(running.process)

    def close(self) -> None:
        """End the worker. A later call starts a fresh worker."""
        self.kill()
        self._stopped = False

    def _ready(self) -> _Running:
        if self._stopped:
            raise WorkerStartError("the worker was stopped")
        if self._running and _has_ended(self._running.process):  # it died between two calls
            self.kill()
        if self._running is None:
            self._running = self._start()
            if self._stopped:  # while it was being started
                self.kill()
                raise WorkerStartError("the worker was stopped")
            self._greet(self._running)
        return self._running

    def _start(self) -> _Running:
        parent_end, worker_end = Pipe()
        with socket.socket(fileno=os.dup(parent_end.fileno())) as end:  # a stopped worker takes no large message
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_SECONDS, 0))
        # A file and not a pipe: a worker that writes much would block on a pipe that is not read.
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        # "-P" keeps the working folder off the worker's path; these paths let it import what the parent can.
        paths = [str(Path(entry).resolve()) for entry in sys.path]
        arguments = (str(worker_end.fileno()), str(os.getpid()))
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "retune.compiler.measure.processes.worker_main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=child_environment({**self.environment, "PYTHONPATH": os.pathsep.join(paths)}),
                pass_fds=(worker_end.fileno(),),
                # Its own process group: Ctrl-C of the terminal does not reach it, and `killpg` ends its children.
                start_new_session=True,
            )
        except OSError as error:
            parent_end.close()
            stderr.close()
            raise WorkerStartError(f"cannot start a worker process: {error}") from error
        finally:
            # The parent's copy would keep the pipe open, and the end of the worker would never show as EOF.
            worker_end.close()
        return _Running(process, parent_end, stderr, weakref.finalize(self, _end, process, parent_end, stderr))

    def _greet(self, running: _Running) -> None:
        """Wait until the worker answers and its initializer has run."""
        try:
            self._receive(running, self.start_timeout_s, "the start")
            if self.initializer:
                self._send(running, (self.initializer, self.initargs))
                reply = ""
                while reply != END:
                    reply, value = self._receive(running, self.start_timeout_s, self.initializer)
                    if reply == ERROR:
                        raise WorkerStartError(f"a worker's initializer failed:\n{value[1]}")
        except BaseException as error:
            self.kill()
            if isinstance(error, WorkerFailedError) and not isinstance(error, WorkerStartError):
                raise WorkerStartError(f"a worker process did not start: {error}") from error
            raise

    def _send(self, running: _Running, request: tuple[str, tuple[object, ...]]) -> None:
        try:
            running.connection.send(request)
        except BlockingIOError:
            self.kill()
            raise WorkerTimeoutError(f"a worker took no message for {_SEND_SECONDS} s; it was ended") from None
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost(running) from None

    def _receive(self, running: _Running, timeout_s: float | None, what: str) -> tuple[str, Any]:
        try:
            if not running.connection.poll(timeout_s):
                self.kill()
                raise WorkerTimeoutError(f"{what} took more than {timeout_s:g} s; its worker was ended")
            kind, value = running.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._lost(running) from None
        return kind, value

    def _lost(self, running: _Running) -> WorkerLostError:
        """Determine how the worker ended, and clean up after it."""
        # The pipe closes before the process is gone: its exit code tells what killed it.
        limit = time.monotonic() + _GRACE_SECONDS
        while not (has_ended := _has_ended(running.process)) and time.monotonic() < limit:
            time.sleep(0.01)
        output = running.last_output()
        self.kill()
        return WorkerLostError(running.process.returncode if has_ended else None, output)


def _raise_remote(error: Exception | None, text: str) -> None:
    if error is None:
        raise MeasureError(f"a function failed in a worker process:\n{text}")
    error.add_note(f"in a worker process:\n{text}")
    raise error


def _end(process: subprocess.Popen[bytes], connection: "Connection[Any, Any]", stderr: IO[bytes]) -> None:
    """Kill the worker's process group and release its resources."""
    _signal_group(process)
    process.wait()
    connection.close()
    stderr.close()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a worker has ended. It is not reaped, which would free its process id and thereby the id of its group."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # where SIGCHLD is ignored, the kernel has reaped it
        return True


def _signal_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
