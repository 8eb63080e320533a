"""Measurement options of a network's tasks: kernels are timed under the cache conditions of the whole network.

While a network runs, the weights of its other kernels pass through the caches between two uses of a kernel's own. If
all weights together exceed the last-level cache, every kernel finds its weights in memory, and a program chosen with
its weights in the cache may be the wrong choice. In that case each timed call takes its weights from another slot of a
pool as large as the network's weights, or twice the cache; a larger pool changes nothing.
"""

from retune.compiler.measure.options import MeasureOptions
from retune.compiler.runtime.threads.machine import last_cache_bytes


def network_options(
    threads: int, constant_bytes: int, weights: str = "auto", cache_bytes: int | None = None
) -> MeasureOptions:
    """Options for the tasks of a network that runs on `threads` threads and has `constant_bytes` of weights.

    `weights` is the option of that name. `cache_bytes` is the last cache's size, by default this machine's.
    """
    cache = last_cache_bytes() if cache_bytes is None else cache_bytes
    exceed = constant_bytes > cache
    rotate = weights == "memory" or (weights == "auto" and exceed)
    # After twice its size an LRU cache holds nothing of the slot that comes round again.
    pool = min(constant_bytes, 2 * cache) if exceed else 2 * cache
    return MeasureOptions(threads=threads, rotate_bytes=pool if rotate else 0)
