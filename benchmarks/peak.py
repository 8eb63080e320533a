"""The peak of float32 operations a second that a number of threads reaches, which figures are compared with."""

import time
from functools import cache

from retune.compiler.measure.limit_kernels import peak_kernel
from retune.compiler.runtime.sequence import KernelSequence

REPEATS = 20
MOST_REPEATS = 200
AGREEING, NEARLY, SCALING = 5, 1.02, 0.97
"""Enough tries: this many are this close to the best, and several threads reach this share of the scaled peak of one
thread. A machine that is busy, or throttles, takes `MOST_REPEATS`.
"""

# Between tries other processes get the CPU, so that the next try does not lose its core in the middle.
_PAUSE_SECONDS = 0.01


@cache
def measured_peak(threads: int) -> float:
    """GFLOP/s of `threads` threads: the best of several tries, since other load only slows them down."""
    kernel, work = peak_kernel(threads)
    run = KernelSequence([kernel])
    run()
    expected = SCALING * threads * measured_peak(1) if threads > 1 else 0.0
    times: list[float] = []
    while len(times) < REPEATS or (len(times) < MOST_REPEATS and not (_agree(times) and work / min(times) >= expected)):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        time.sleep(_PAUSE_SECONDS)
    return work / min(times)


def _agree(times: list[float]) -> bool:
    """Whether enough tries are about as fast as the fastest."""
    return sorted(times)[AGREEING - 1] <= NEARLY * min(times)
