"""Simulated PTX memory of many threads.

An access must be aligned and within one buffer, to the byte. Shared memory is fresh for every block, local memory for
every thread.
"""

import numpy as np
from numpy.typing import NDArray

from tests.support.ptx.program import PtxError
from tests.support.ptx.values import Bits

SHARED, LOCAL, GLOBAL = 1 << 28, 1 << 29, 1 << 32
"""Where the windows of addresses begin."""
_NEVER = 0xCD
"""What lies where nothing was written."""

Bytes = NDArray[np.uint8]


class Buffer:
    """`copies` of so many bytes, from an address on."""

    def __init__(self, start: int, nbytes: int, copies: int = 1) -> None:
        self.start = start
        self.nbytes = nbytes
        self.data = np.full((copies, nbytes), _NEVER, np.uint8)


class Memory:
    """Global buffers, and what blocks and threads have."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def add(self, values: Bytes) -> int:
        """The address of a new global buffer of these bytes."""
        start = GLOBAL + (len(self.buffers) << 24)
        self.buffers.append(Buffer(start, values.size))
        self.buffers[-1].data[0, : values.size] = values
        return start

    def read(self, addresses: Bits, size: int, copies: NDArray[np.intp], own: tuple[Buffer, ...], text: str) -> Bytes:
        """(threads, size) bytes."""
        buffer, places = self._find(addresses, size, own, text)
        if (places + size > buffer.nbytes).any():
            raise PtxError(f"reads outside: {text}")
        rows = copies if buffer in own else np.zeros_like(copies)
        return np.asarray(buffer.data[rows[:, None], places[:, None] + np.arange(size)])

    def write(
        self, addresses: Bits, values: Bytes, copies: NDArray[np.intp], own: tuple[Buffer, ...], text: str
    ) -> None:
        """Write (threads, size) bytes."""
        size = values.shape[1]
        buffer, places = self._find(addresses, size, own, text)
        if (places + size > buffer.nbytes).any():
            raise PtxError(f"writes outside: {text}")
        rows = copies if buffer in own else np.zeros_like(copies)
        buffer.data[rows[:, None], places[:, None] + np.arange(size)] = values

    def _find(self, addresses: Bits, size: int, own: tuple[Buffer, ...], text: str) -> tuple[Buffer, NDArray[np.int64]]:
        if (addresses % np.uint64(size)).any():
            raise PtxError(f"not aligned: {text}")
        first = int(addresses[0])
        for buffer in (*own, *self.buffers):
            if buffer.start <= first < buffer.start + buffer.nbytes:
                places = addresses.astype(np.int64) - buffer.start
                if (places < 0).any():
                    raise PtxError(f"outside: {text}")
                return buffer, places
        raise PtxError(f"nothing lies at {first:#x}: {text}")
