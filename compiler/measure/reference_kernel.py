"""A short kernel that tells how fast the machine runs now, to be run beside timings.

The counters of contention do not see what happens outside the operating system: a clock that was lowered, or a host
that runs two virtual CPUs on one core. The latter was seen on a virtual machine after its CPUs had waited: for tenths
of a second at a time every kernel took twice as long. A load on all threads ends it within half a second.
"""

import math
import time
from collections.abc import Callable
from functools import cache

from retune.compiler.measure.peak import peak_kernel

# 0.1 ms at 4 GHz: short beside a repeat of 3 ms, long beside the fork of threads.
_STEPS = 32_000
_SLOW = 1.2
"""So many times the least time of the kernel count as slow: a clock varies by less between its boosts."""
_RECOVERY_SECONDS = 0.5
_REST_SECONDS = 5.0
"""How long a machine that did not recover is left alone: its speed may have changed for good."""
_RECOVERED = 3
"""So many quick calls in a row show that the machine has recovered."""


@cache
def reference_kernel(threads: int) -> "ReferenceKernel":
    """The kernel for so many threads; it is compiled once in a process, in some 50 ms."""
    return ReferenceKernel(peak_kernel(threads, _STEPS)[0])


class ReferenceKernel:
    """Compares the time of `run`, which only computes, with the least time it ever took."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._least = math.inf
        self._resting_until = -math.inf
        for _ in range(_RECOVERED):
            self._seconds()

    def lacking_speed(self) -> float:
        """The share of its speed, 0 to 1, that the machine lacks now; 0 where that may be noise."""
        seconds = self._seconds()
        if self._is_slow(seconds):
            # An interrupt hits one call, a slow machine both.
            seconds = min(seconds, self._seconds())
        return 1 - self._least / seconds if self._is_slow(seconds) else 0.0

    def recover(self) -> None:
        """Keep the threads busy until the machine runs at full speed, for half a second at most."""
        now = time.perf_counter()
        if now < self._resting_until:
            return
        quick, end = 0, now + _RECOVERY_SECONDS
        while quick < _RECOVERED:
            quick = 0 if self._is_slow(self._seconds()) else quick + 1
            if time.perf_counter() > end:
                self._resting_until = end + _REST_SECONDS
                return

    def _is_slow(self, seconds: float) -> bool:
        return seconds > _SLOW * self._least

    def _seconds(self) -> float:
        start = time.perf_counter()
        self._run()
        seconds = time.perf_counter() - start
        self._least = min(self._least, seconds)
        return seconds
