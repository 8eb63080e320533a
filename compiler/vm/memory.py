"""In: numbers of bytes. Out: memory for the arrays of a virtual machine, which comes back when no array uses it.

Always: memory starts at a multiple of 64 bytes, and is given to nobody else while any array that lies in it is alive,
the caller's results among them.
"""

import weakref
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

import numpy as np

from compiler.errors import ArtifactError, MachineError
from compiler.runtime.artifact import Array
from compiler.runtime.buffers import aligned_array
from compiler.vm.values import address

POOLED, NAIVE = "pooled", "naive"
_PAGE = 4096
_SLACK = 1.25
"""A block that is so many times as large as what is asked for may serve: lengths that grow by one would else keep a
block each."""


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Memory: its bytes, and where they begin."""

    array: Array
    address: int

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return int(self.array.nbytes)


class Allocator(ABC):
    """Gives memory."""

    def allocate(self, nbytes: int) -> Storage:
        """Memory of that many bytes, with whatever content. Raises: MachineError when there is none."""
        if nbytes < 0:
            raise MachineError(f"memory of {nbytes} bytes was asked for")
        return self._allocate(nbytes)

    @abstractmethod
    def _allocate(self, nbytes: int) -> Storage: ...


class NaiveAllocator(Allocator):
    """Asks the system every time."""

    def _allocate(self, nbytes: int) -> Storage:
        array = _fresh(nbytes)
        return Storage(array, address(array))


_Block = tuple[int, int, memoryview]
"""How many bytes, from which address, and what holds them: in order of size, since no two have one address."""


class PooledAllocator(Allocator):
    """Keeps memory that came back for those who ask next; when the system has none left, all that is kept is given up
    first.
    """

    def __init__(self) -> None:
        self._free: list[_Block] = []
        self._returned: deque[_Block] = deque()
        self._leases: dict[int, tuple[weakref.ref[Array], _Block]] = {}
        self.reserved = 0
        """Bytes that are in use or kept."""

    def _allocate(self, nbytes: int) -> Storage:
        wanted = max(nbytes + -nbytes % _PAGE, _PAGE)
        block = self._kept(wanted) or self._new(wanted)
        # A view of this array keeps this very array alive, since what it lies in is no array itself.
        lease: Array = np.frombuffer(block[2], np.uint8, nbytes)
        leases, returned, key = self._leases, self._returned, id(lease)

        def back(_: object) -> None:  # at any time, perhaps while the pool looks for memory
            returned.append(leases.pop(key)[1])

        leases[key] = (weakref.ref(lease, back), block)
        return Storage(lease, block[1])

    def _kept(self, wanted: int) -> _Block | None:
        while self._returned:
            insort(self._free, self._returned.popleft())
        place = bisect_left(self._free, (wanted,))
        if place < len(self._free) and self._free[place][0] <= wanted * _SLACK:
            return self._free.pop(place)
        return None

    def _new(self, wanted: int) -> _Block:
        try:
            array = _fresh(wanted)
        except MachineError:
            self.reserved -= sum(nbytes for nbytes, _, _ in self._free)
            self._free.clear()
            array = _fresh(wanted)
        self.reserved += wanted
        return wanted, address(array), array.data


def allocator(kind: str) -> Allocator:
    """The allocator of that name, "pooled" or "naive". Raises: MachineError for another name."""
    kinds = {POOLED: PooledAllocator, NAIVE: NaiveAllocator}
    if kind not in kinds:
        raise MachineError(f"memory is {POOLED!r} or {NAIVE!r}, not {kind!r}")
    return kinds[kind]()


def _fresh(nbytes: int) -> Array:
    try:
        return aligned_array((max(nbytes, 1),), "uint8")[:nbytes] if nbytes else aligned_array((1,), "uint8")[:0]
    except ArtifactError as error:
        raise MachineError(str(error)) from error
