"""Stores of results computed from large constants, used inside `cache_constants` only.

`MemoizedConstants` saves time: it keeps results, by their sources. A large array is identified by its address: the
cache keeps it alive, and constants are never written to. A small array is identified by its content.
`SharedConstants` saves memory: networks compiled from the same weights read the same arrays.
"""

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol
from weakref import ref

import numpy as np

from retune.compiler.graph.ir import Array

# Below a MiB recomputing takes under a millisecond, and entries would push large results out of the cache.
_LARGE_BYTES = 1 << 20
# Every specialization recomputes factors and biases, at other addresses with the same content.
_SMALL_BYTES = 1 << 16
_SAMPLED = 256
"""Elements of an array by which most unequal arrays are told apart."""
_active = threading.local()


class ConstantStore(Protocol):
    """Returns results computed from constants, from what it knows or by `compute`."""

    def result(self, key: Hashable, sources: Sequence[Array], compute: Callable[[], Array]) -> Array:
        """The result of `compute`, which depends only on `key` and the sources."""


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


class SharedConstants:
    """Returns the same array for equal results in read-only memory, while anything else holds it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[ref[Array]]] = {}

    def result(self, key: Hashable, sources: Sequence[Array], compute: Callable[[], Array]) -> Array:  # noqa: ARG002
        """The result of `compute`, or an array that equals it."""
        array = compute()
        if array.nbytes <= _SMALL_BYTES or array.flags.writeable or not array.flags.c_contiguous:
            return array
        sampled = array.reshape(-1)[:: max(1, array.size // _SAMPLED)]
        same = self._known.setdefault((array.dtype.str, array.shape, zlib.crc32(sampled.tobytes())), [])
        same[:] = [known for known in same if known() is not None]
        for known in same:
            kept = known()
            if kept is not None and np.array_equal(_words(kept), _words(array)):
                return kept
        same.append(ref(array))
        return array


def _words(array: Array) -> Array:
    """The bytes of an array, by eight where they can be."""
    return array.reshape(-1).view(np.uint8 if array.nbytes % 8 else np.uint64)


def _identity(array: Array) -> Hashable:
    if array.nbytes <= _SMALL_BYTES:
        return array.dtype.str, array.shape, array.tobytes()
    return array.dtype.str, array.shape, array.strides, array.__array_interface__["data"][0]


@contextmanager
def cache_constants(store: ConstantStore) -> Iterator[None]:
    """Use `store`, in this thread, for results computed from large constants."""
    before = getattr(_active, "store", None)
    _active.store = store
    try:
        yield
    finally:
        _active.store = before


def memoize(key: Hashable, sources: Sequence[Array], compute: Callable[[], Array]) -> Array:
    """The read-only result of `compute`, which depends only on `key` and the sources."""
    store: ConstantStore | None = getattr(_active, "store", None)
    return compute() if store is None else store.result(key, sources, compute)
