"""Memory allocators of the virtual machine.

Memory is aligned to 64 bytes. It returns to the pool only when no array uses it, including results that the caller
holds.
"""

import weakref
from abc import ABC, abstractmethod
from collections import deque

import numpy as np

from retune.compiler.core.dtype import DType
from retune.compiler.core.errors import ArtifactError, MachineError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import address, aligned_array, raw_memory

POOLED, NAIVE = "pooled", "naive"
# TVM's pool rounds to the same; larger steps would waste more, smaller ones fit fewer requests.
_PAGE = 4096
_SLACK = 1.25
"""The largest block that serves a request, as a multiple of it: a fifth of a block is wasted at most. Without slack,
lengths that grow by one would keep a block each.
"""

_KEPT = 4
"""Memory that is kept, in terms of the most that was in use: a few sets of shapes may alternate."""


class Allocator(ABC):
    """The interface of allocators."""

    @abstractmethod
    def array(self, shape: tuple[int, ...], dtype: DType, nbytes: int) -> tuple[Array, int]:
        """An array, `nbytes` of them, with whatever content, and where it begins. Raises: MachineError."""


class NaiveAllocator(Allocator):
    """Allocates from the system every time."""

    def array(self, shape: tuple[int, ...], dtype: DType, nbytes: int) -> tuple[Array, int]:
        """As `Allocator.array`."""
        try:
            array = aligned_array((nbytes,), "uint8")
        except ArtifactError as error:
            raise MachineError(str(error)) from error
        return np.ndarray(shape, dtype, array), address(array)


class _Block:
    """A block of the pool: its size in bytes, the object that owns it and its address."""

    __slots__ = ("address", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        try:
            self.memory, self.address = raw_memory(nbytes)
        except ArtifactError as error:
            raise MachineError(str(error)) from error


class PooledAllocator(Allocator):
    """Keeps freed memory for later requests, up to four times what was in use at once, so that ever new sizes do not
    add up; when the system has none left, it releases the whole pool first.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[_Block]] = {}
        self._leases: dict[int, tuple[weakref.ref[Array], _Block]] = {}
        """Blocks in use, by the id of a reference to the array that lies there."""
        self._returned: deque[weakref.ref[Array]] = deque()
        """References to arrays that went: they come at any time, perhaps while the pool looks for memory."""
        self.reserved = 0
        """Bytes that are in use or kept."""
        self._peak = 0
        """The most bytes that were in use when a block was made."""

    def array(self, shape: tuple[int, ...], dtype: DType, nbytes: int) -> tuple[Array, int]:
        """As `Allocator.array`. The memory comes back when neither the array nor a view of it is left."""
        # Whole pages: fewer different sizes, so more blocks fit again.
        wanted = nbytes + -nbytes % _PAGE or _PAGE
        returned, leases = self._returned, self._leases
        # Returned blocks first: the last one is warm in the caches, and in a loop it has the size that is asked for.
        while returned:
            _, block = leases.pop(id(returned.popleft()))
            if block.nbytes == wanted and not returned:
                break
            self._free.setdefault(block.nbytes, []).append(block)
        else:
            kept = self._free.get(wanted)
            block = kept.pop() if kept else self._near(wanted) or self._new(wanted)
        array: Array = np.ndarray(shape, dtype, block.memory)
        # `deque.append` is atomic: the callback may run in any thread, at any allocation, so it takes no lock.
        lease = weakref.ref(array, returned.append)
        leases[id(lease)] = lease, block
        return array, block.address

    def _near(self, wanted: int) -> _Block | None:
        """The smallest block that is kept and a little larger."""
        # Best fit, as a larger block may serve a larger request later.
        sizes = [size for size, blocks in self._free.items() if blocks and wanted < size <= wanted * _SLACK]
        return self._free[min(sizes)].pop() if sizes else None

    def _new(self, wanted: int) -> _Block:
        try:
            block = _Block(wanted)
        except MachineError:
            self.reserved -= sum(size * len(blocks) for size, blocks in self._free.items())
            # Memory that is kept may be what the system lacks: give all of it back and try once more.
            self._free.clear()
            block = _Block(wanted)
        self.reserved += wanted
        used = wanted + sum(leased.nbytes for _, leased in self._leases.values())
        self._peak = max(self._peak, used)
        # The sizes that were made first go first.
        while self._free and self.reserved - used > _KEPT * self._peak:
            size = next(iter(self._free))
            blocks = self._free.pop(size)
            self.reserved -= size * len(blocks)
        return block


def allocator(kind: str) -> Allocator:
    """The allocator of that name, "pooled" or "naive". Raises: MachineError for another name."""
    kinds = {POOLED: PooledAllocator, NAIVE: NaiveAllocator}
    if kind not in kinds:
        raise MachineError(f"memory is {POOLED!r} or {NAIVE!r}, not {kind!r}")
    return kinds[kind]()
