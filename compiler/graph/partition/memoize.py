"""A cache of results computed from large constants; it is active inside `cache_constants` only.

A large array is identified by its address: the cache keeps it alive, and constants are never written to. A small array
is identified by its content.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

from retune.compiler.graph.ir import Array

# Below a MiB recomputing takes under a millisecond, and entries would push large results out of the cache.
_LARGE_BYTES = 1 << 20
# Every specialization recomputes factors and biases, at other addresses with the same content.
_SMALL_BYTES = 1 << 16
_active = threading.local()


class MemoizedConstants:
    """A least-recently-used cache of results computed from large constants, of at most `most_bytes` bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Hashable, tuple[tuple[Array, ...], Array]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def result(self, key: Hashable, sources: Sequence[Array], compute: Callable[[], Array]) -> Array:
        """The result of `compute`, which depends only on `key` and the sources."""
        if sum(source.nbytes for source in sources) < _LARGE_BYTES:
            return compute()
        entry = (key, *map(_identity, sources))
        with self._lock:
            if entry in self._entries:
                self._entries.move_to_end(entry)
                return self._entries[entry][1]
        # Without the lock: packing a weight may take seconds. Two threads may compute one result, and both are right.
        array = compute()
        with self._lock:
            if entry not in self._entries:
                self._entries[entry] = (tuple(sources), array)
                self._bytes += array.nbytes
            while self._bytes > self._most_bytes:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._bytes -= dropped.nbytes
        return array


def _identity(array: Array) -> Hashable:
    if array.nbytes <= _SMALL_BYTES:
        return array.dtype.str, array.shape, array.tobytes()
    return array.dtype.str, array.shape, array.strides, array.__array_interface__["data"][0]


@contextmanager
def cache_constants(store: MemoizedConstants) -> Iterator[None]:
    """Cache, in this thread, results computed from large constants."""
    before = getattr(_active, "store", None)
    _active.store = store
    try:
        yield
    finally:
        _active.store = before


def memoize(key: Hashable, sources: Sequence[Array], compute: Callable[[], Array]) -> Array:
    """The read-only result of `compute`, which depends only on `key` and the sources."""
    store: MemoizedConstants | None = getattr(_active, "store", None)
    return compute() if store is None else store.result(key, sources, compute)
