"""Workers of a fleet in processes of their own, as `retune worker` starts them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from retune.compiler.core import config

START_SECONDS = 120.0
STRIKE_SECONDS = 240.0


@contextmanager
def worker(log: Path, *options: str, settings: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker that serves its queues; what it says goes to `log`."""
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = config.child_environment({"PYTHONPATH": paths, **(settings or {})})
    command = [sys.executable, "-P", "-m", "retune.flows.cli.app", "worker", *options]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        wait_until(lambda: " serves " in log.read_text() or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def strike_at_work(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a worker a signal once it has processes that build or time."""
    wait_until(lambda: bool(psutil.Process(process.pid).children()), STRIKE_SECONDS)
    process.send_signal(number)


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Raises: TimeoutError."""
    limit = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > limit:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.02)
