"""Roofline of this machine: arithmetic peak and bandwidths for a number of threads.

Both are measured by kernels of our own that do nothing else; nothing is looked up in a table.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from retune.compiler.measure.limit_kernels import peak_kernel, stream_kernel
from retune.compiler.runtime.threads.affinity import free_memory_bytes, last_cache_bytes

TRIES = 12
"""The best of so many counts, since other load can only slow one down."""

PAUSE_SECONDS = 0.005

CACHED_BYTES = 512 << 10
"""A thread's part of a stream that stays in the caches of its core."""

MOST_BYTES = 512 << 20
"""A stream through memory takes no more than this, however large the caches are."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Peak performance of `threads` threads.

    `peak_gflops` is float32 multiply-add throughput in 10^9 operations per second, a multiply-add being two.
    `memory_gbs` is bandwidth to memory, and `cache_gbs` to the caches of the cores, in 10^9 bytes per second, reads and
    writes together.
    """

    threads: int
    peak_gflops: float
    memory_gbs: float
    cache_gbs: float


def measure_limits(threads: int) -> MachineLimits:
    """Take a second to find the limits of this machine. Raises: MemoryError when there is too little for a stream."""
    run, gflop = peak_kernel(threads)
    # Twice the last cache, so that at most a part of a call's data is left from the call before.
    through_memory = min(2 * last_cache_bytes() + (64 << 20), MOST_BYTES, (free_memory_bytes() or MOST_BYTES) // 4)
    return MachineLimits(
        threads,
        gflop / least_seconds(run),
        _bytes_a_second(through_memory, threads) / 1e9,
        _bytes_a_second(CACHED_BYTES * threads, threads) / 1e9,
    )


def _bytes_a_second(size: int, threads: int) -> float:
    """Of a stream that reads two bytes for each byte written."""
    # The mix of STREAM's triad (McCalpin, 1995).
    run, moved = stream_kernel(size * 2 // 3, size // 3, threads)
    # A cached stream takes microseconds: 64 calls lift it above the cost of reading the clock.
    return moved / least_seconds(run, calls=1 if size > 1 << 24 else 64)


def least_seconds(run: Callable[[], object], calls: int = 1) -> float:
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
