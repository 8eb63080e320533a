"""Constants of a program for all shapes. Weights that kernels read packed are kept packed, and unpacked on demand."""

import hashlib
import threading
import weakref
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.packing import Packing
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import address, constant_array, freeze

_LEAST_BYTES = 1 << 10
"""Smaller constants are kept twice."""

_PREFIX = 64
"""Elements that are compared before all are."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A constant of this `shape` that the constant `source` holds in a packing."""

    source: str
    packing: Packing
    shape: tuple[int, ...]


class ProgramConstants(Mapping[str, Array]):
    """Constants by name: those that are `stored`, and those that are unpacked from these."""

    def __init__(self, stored: Mapping[str, Array], unpacked: Mapping[str, Unpacked]) -> None:
        self.stored = dict(stored)
        self.unpacked = dict(unpacked)

    def __getitem__(self, name: str) -> Array:
        if name in self.stored:
            return self.stored[name]
        row = self.unpacked[name]
        return freeze(_flat(self.stored[row.source], row.packing).reshape(row.shape))

    def __contains__(self, name: object) -> bool:
        return name in self.stored or name in self.unpacked

    def __iter__(self) -> Iterator[str]:
        """The names of those that are there: a constant that is bound late may be the source of others."""
        yield from self.stored
        yield from (name for name, row in self.unpacked.items() if row.source in self.stored)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def stored_constants(constants: Mapping[str, Array]) -> Mapping[str, Array]:
    """The constants that are stored."""
    return constants.stored if isinstance(constants, ProgramConstants) else constants


def with_stored(constants: Mapping[str, Array], stored: Mapping[str, Array]) -> Mapping[str, Array]:
    """`constants` with others `stored`."""
    return ProgramConstants(stored, constants.unpacked) if isinstance(constants, ProgramConstants) else stored


def store_packed(
    constants: Mapping[str, Array], packings: Mapping[str, Packing], read: Collection[str]
) -> Mapping[str, Array]:
    """`constants`, in which those that a packed constant holds, too, are unpacked from it; `packings` are those of
    packed constants by name. Constants that kernels `read` stay as they are.
    """
    sources = {}
    for source, packing in packings.items():
        flat = _flat(constants[source], packing)
        sources[flat.nbytes, _digest(flat)] = source, packing
    sizes = {nbytes for nbytes, _ in sources if nbytes >= _LEAST_BYTES}
    unpacked = {}
    for name, array in constants.items():
        if array.nbytes in sizes and name not in read and (match := sources.get((array.nbytes, _digest(array)))):
            source, packing = match
            if constants[source].dtype == array.dtype:
                unpacked[name] = Unpacked(source, packing, array.shape)
    if not unpacked:
        return constants
    return ProgramConstants({name: array for name, array in constants.items() if name not in unpacked}, unpacked)


def equal_constant(array: Array, constants: Mapping[str, Array]) -> str:
    """The name of a constant with the type, shape and elements of `array`; empty if there is none."""
    if array.nbytes < _LEAST_BYTES:
        return ""
    begin = array.reshape(-1)[:_PREFIX].tobytes()
    for name, other in constants.items():
        if (other.dtype, other.shape) == (array.dtype, array.shape):
            is_alike = other.reshape(-1)[:_PREFIX].tobytes() == begin
            if is_alike and _digest(other) == _digest(array):
                return name
    return ""


def _flat(packed: Array, packing: Packing) -> Array:
    return packing.unpack(packed, packing.extents or (packing.size,)).reshape(-1)


def _digest(array: Array) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


class ConstantPool:
    """Arrays that kernels read, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...], int], list[weakref.ref[Array]]] = {}
        self._by_address: weakref.WeakValueDictionary[tuple[str, tuple[int, ...], int], Array]
        self._by_address = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def intern(self, array: Array) -> Array:
        """The pool's array with the elements of `array`: dense, aligned and not to be written."""
        dense = np.ascontiguousarray(array).reshape(array.shape)
        known = self._by_address.get((dense.dtype.name, dense.shape, address(dense)))
        if known is not None:  # it is alive, so this is its memory
            return known
        words = _words(dense)
        # Hash consing: the checksum finds candidates, and equality of all bytes decides.
        key = (dense.dtype.name, dense.shape, zlib.crc32(words.data))
        with self._lock:
            alive = [reference for reference in self._known.get(key, ()) if reference() is not None]
            for reference in alive:
                other = reference()
                if other is not None and np.array_equal(_words(other), words):
                    return other
            # A view, so that the weak references end with the pool's users and not with the caller's own array.
            pooled = constant_array(dense).view()
            self._known[key] = [*alive, weakref.ref(pooled)]
            self._by_address[pooled.dtype.name, pooled.shape, address(pooled)] = pooled
        return pooled


POOL = ConstantPool()
"""The constants of this process."""


def _words(array: Array) -> Array:
    """The bytes of a dense array, eight at a time where that is possible: there may be many."""
    return array.reshape(-1).view(np.uint64 if array.nbytes % 8 == 0 else np.uint8)
