"""A short kernel, run next to timings, that measures the current speed of the machine.

The counters of contention do not see effects outside the operating system: a lowered clock, or a host that runs two
virtual CPUs on one core. The latter was seen on a virtual machine after its CPUs had been idle: for tenths of a second
at a time every kernel took twice as long. A load on all threads ends it within half a second.
"""

import logging
import statistics
import time
from collections.abc import Callable
from functools import cache

from retune.compiler.measure.limit_kernels import peak_kernel

_log = logging.getLogger(__name__)
# 0.05 to 0.1 ms at 4 GHz: short compared with a repeat of 3 ms, long compared with the fork of threads.
_STEPS = 32_000
_MOST_SECONDS = 1e-3
"""A slower kernel, as on a CPU without fused multiply-adds, would cost more than the timings."""
_SLOW = 1.2
"""The kernel is slow at this factor times its usual time, and a time shorter by the factor becomes the usual time."""
_START_SECONDS, _RECOVERY_SECONDS = 0.1, 0.5
_RECOVERED = 3
"""Consecutive fast calls that show that the machine has recovered."""


@cache
def reference_kernel(threads: int) -> "ReferenceKernel | None":
    """The kernel for `threads`, compiled once in a process, in 0.2 s. None where it fails or takes too long."""
    try:
        reference = ReferenceKernel(peak_kernel(threads, _STEPS)[0])
    except Exception as error:
        _log.warning("timings are made without a reference kernel: %s", error)
        return None
    return reference if reference.usual_seconds <= _MOST_SECONDS else None


class ReferenceKernel:
    """Compares the time of `run`, which only computes, with its usual time."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self.usual_seconds = float("inf")
        end = time.perf_counter() + _START_SECONDS
        calls = [self._time_call()]
        while time.perf_counter() < end:
            calls.append(self._time_call())
        self.usual_seconds = min(self.usual_seconds, statistics.median(calls))

    def measure_slowdown(self) -> float:
        """The share of its speed, 0 to 1, that the machine lacks now; 0 where it may be noise."""
        seconds = self._time_call()
        if self._is_slow(seconds):
            # An interrupt affects one call, a slow machine both.
            seconds = min(seconds, self._time_call())
        return 1 - self.usual_seconds / seconds if self._is_slow(seconds) else 0.0

    def recover(self, most_seconds: float = _RECOVERY_SECONDS) -> None:
        """Keep the threads busy until the machine runs at its usual speed, for half a second or `most_seconds`.

        If the machine is still slow after half a second, this becomes its usual speed.
        """
        calls: list[float] = []
        end = time.perf_counter() + min(most_seconds, _RECOVERY_SECONDS)
        while time.perf_counter() <= end:
            calls.append(self._time_call())
            if len(calls) >= _RECOVERED and not any(map(self._is_slow, calls[-_RECOVERED:])):
                return
        if most_seconds >= _RECOVERY_SECONDS:
            self.usual_seconds = statistics.median(calls)

    def _is_slow(self, seconds: float) -> bool:
        return seconds > _SLOW * self.usual_seconds

    def _time_call(self) -> float:
        start = time.perf_counter()
        self._run()
        seconds = time.perf_counter() - start
        # Not every shorter time: where calls vary, the shortest of thousands would make all others slow.
        if seconds * _SLOW < self.usual_seconds:
            self.usual_seconds = seconds
        return seconds
