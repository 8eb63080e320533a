"""In: a network's threads and bytes of weights. Out: how its programs are timed. Always: as the network will run them.

While a network runs, the weights of its other kernels pass through the caches between two uses of a kernel's own. When
all together exceed the last cache, every kernel finds its weights in memory, and a program that was chosen with weights
in the cache may be the wrong one. So then each timed call gets its weights from another place of a pool as large as the
network's weights, or twice the cache: beyond that nothing changes.
"""

from retune.compiler.measure.options import MeasureOptions
from retune.compiler.runtime.machine import last_cache_bytes


def network_options(
    threads: int, constant_bytes: int, weights: str = "auto", cache_bytes: int | None = None
) -> MeasureOptions:
    """Options for the tasks of a network that runs on `threads` threads and has `constant_bytes` of weights.

    `weights` is the option of that name. `cache_bytes` is the last cache's size, by default this machine's.
    """
    cache = last_cache_bytes() if cache_bytes is None else cache_bytes
    exceed = constant_bytes > cache
    rotate = weights == "memory" or (weights == "auto" and exceed)
    pool = min(constant_bytes, 2 * cache) if exceed else 2 * cache
    return MeasureOptions(threads=threads, rotate_bytes=pool if rotate else 0)
