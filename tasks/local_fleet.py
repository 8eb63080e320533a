"""In: the key of a device. Out: a worker of this machine that times for one script, and the way to it.

Always: gone when the script is, however that ends; a worker that is killed is replaced, and what it was doing is done
again.

No server is needed: errands go through a folder of their own. Prefect is imported by the worker alone.
"""

import contextlib
import os
import selectors
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from retune.compiler import config
from retune.compiler.errors import MeasureError
from retune.storage.errands import ErrandStore
from retune.tasks.courier import StoreCourier

READY = "ready"
"""What a worker says when it begins to look for errands."""
SILENCE_SECONDS = 6.0
"""A worker of the same machine that has not raised its count for so long is lost."""
PATIENCE_SECONDS = 300.0
"""So long an errand may wait for the worker."""
START_SECONDS = 120.0
"""So long a worker may take to begin: it imports a compiler, perhaps from a cold disk on a busy machine."""
LEAVE_SECONDS = 15.0
"""How long a worker has to end by itself."""


class LocalFleet:
    """A worker that times as a device of `key`, in a process of its own; `courier` is the way to it."""

    def __init__(self, key: str, priority: int = 1) -> None:
        """Raises: MeasureError when the worker does not start."""
        self._key = key
        self._folder = TemporaryDirectory(prefix="retune-fleet-")
        self._starting = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        try:
            self._revive(key)
        except BaseException:
            self.close()
            raise
        self.courier = StoreCourier(
            ErrandStore(f"{self._folder.name}/errands"),
            self._revive,
            priority,
            silence_s=SILENCE_SECONDS,
            patience_s=PATIENCE_SECONDS,
        )

    @property
    def folder(self) -> str:
        """Where errands lie, in errands/, and what the worker needs."""
        return self._folder.name

    @property
    def pid(self) -> int | None:
        """The process of the worker, while there is one."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End the worker. What it does is given up."""
        if self._process is not None:
            self._end(self._process)
            self._process = None
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _revive(self, queue: str) -> None:  # noqa: ARG002 - a wake has a queue
        """Start a worker if there is none; called whenever an errand waits."""
        with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            if self._process is not None:
                self._end(self._process)
            self._process = self._started()

    def _started(self) -> "subprocess.Popen[str]":
        """A worker that is ready. It ends when its standard input does, which no end of this process can prevent; a
        Ctrl-C on the terminal does not reach it.
        """
        settings = {
            "PREFECT_HOME": f"{self._folder.name}/prefect",
            "PREFECT_LOGGING_LEVEL": "CRITICAL",
            "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "retune.tasks.local_worker", f"{self._folder.name}/errands", self._key],
            env=config.child_environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            is_silent = not selector.select(START_SECONDS)
        if is_silent:
            process.kill()
            self._end(process)
            raise MeasureError(f"the worker for {self._key} has not begun within {START_SECONDS:.0f} s and was ended")
        if process.stdout.readline().strip() != READY:
            self._end(process)
            raise MeasureError(
                f"the worker for {self._key} ended with code {process.returncode} before it began; stderr says why"
            )
        return process

    @staticmethod
    def _end(process: "subprocess.Popen[str]") -> None:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
