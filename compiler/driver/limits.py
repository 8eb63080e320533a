"""In: a number of threads. Out: what this machine can do at best: operations and bytes a second.

Always: measured, never looked up, by our own kernels that do nothing else. The two lines of a roofline.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from retune.compiler.measure.bandwidth import stream_kernel
from retune.compiler.measure.peak import peak_kernel
from retune.compiler.runtime.machine import free_memory_bytes, last_cache_bytes

TRIES = 12
"""The best of so many counts, since other load can only slow one down."""

PAUSE_SECONDS = 0.005

CACHED_BYTES = 512 << 10
"""A thread's part of a stream that stays in the caches of its core."""

MOST_BYTES = 512 << 20
"""A stream through memory takes no more than this, however large the caches are."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Of `threads` threads: float32 multiply-adds in 10^9 operations a second, and 10^9 bytes a second that they read
    and write in memory, and in the caches of their cores.
    """

    threads: int
    peak_gflops: float
    memory_gbs: float
    cache_gbs: float


def measure_limits(threads: int) -> MachineLimits:
    """Take a second to find the limits of this machine. Raises: MemoryError when there is too little for a stream."""
    run, gflop = peak_kernel(threads)
    through_memory = min(2 * last_cache_bytes() + (64 << 20), MOST_BYTES, (free_memory_bytes() or MOST_BYTES) // 4)
    return MachineLimits(
        threads,
        gflop / _least_seconds(run),
        _bytes_a_second(through_memory, threads) / 1e9,
        _bytes_a_second(CACHED_BYTES * threads, threads) / 1e9,
    )


def _bytes_a_second(size: int, threads: int) -> float:
    """Of a stream that reads two bytes for every one that it writes."""
    run, moved = stream_kernel(size * 2 // 3, size // 3, threads)
    return moved / _least_seconds(run, calls=1 if size > 1 << 24 else 64)


def _least_seconds(run: Callable[[], object], calls: int = 1) -> float:
    """Seconds of one call, the best of several tries of so many calls each."""
    run()
    best = float("inf")
    for _ in range(TRIES):
        time.sleep(PAUSE_SECONDS)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, time.perf_counter() - start)
    return best / calls
