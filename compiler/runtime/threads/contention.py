"""Measures how much CPU time other processes took from this process's threads during a span of time.

It reads the operating system's counters, in a few microseconds; the result is None without counters.

Two counters are used. A single computing thread should have as much CPU time as wall time; the difference went to other
processes, or to other machines on the same host. Several threads wait for each other, so their missing time proves
nothing; for them the time spent runnable without a CPU counts (`schedstat`).
"""

import os
import time
from pathlib import Path

from retune.compiler.core.closing import Closing

_TASKS = Path("/proc/self/task")


class ContentionMeter(Closing):
    """Measures spans for code that runs on `threads` threads: the calling thread, and other existing threads.

    with ContentionMeter(threads) as meter:
        meter.start()
        ...
        share = meter.share(elapsed)
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._files = _schedstat_files() if threads > 1 else []
        self._begun = 0

    def start(self) -> None:
        self._begun = self._account()

    def share(self, elapsed_ns: int) -> float | None:
        """The share (0 to 1) of `elapsed_ns` wall nanoseconds that others took; summed over threads, at most 1."""
        if self._threads > 1 and not self._files:
            return None
        used = self._account() - self._begun
        # CPU time of one thread also shows hypervisor steal; run-queue delay of several does not.
        lost = elapsed_ns - used if self._threads == 1 else used
        return min(1.0, max(0.0, lost / max(elapsed_ns, 1)))

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []

    def _account(self) -> int:
        """Nanoseconds: for one thread its CPU time, for several their time waiting for a CPU."""
        if self._threads == 1:
            return time.thread_time_ns()
        return sum(_waiting_ns(file) for file in self._files)


def _schedstat_files() -> list[int]:
    """The open schedstat files of all threads of this process."""
    files = []
    try:
        for task in _TASKS.iterdir():
            # Opened once: a file stays valid for the life of its thread.
            files.append(os.open(task / "schedstat", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:  # a kernel without accounts, or a thread that has just ended
        for file in files:
            os.close(file)
        return []
    return files


def _waiting_ns(file: int) -> int:
    """The second number of a schedstat file: nanoseconds spent ready but not running."""
    try:
        return int(os.pread(file, 80, 0).split()[1])
    except (OSError, IndexError, ValueError):  # the thread has ended
        return 0
