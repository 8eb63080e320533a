"""Fake GPUs that are as asynchronous and strict as real ones.

Queued work happens when somebody waits for its stream. Memory belongs to the GPU that was open when it was allocated,
begins with garbage, and is gone when nothing refers to it. An access to freed memory, or to a GPU that is not open,
raises a DeviceError.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import local
from typing import Any

import numpy as np

from retune.compiler.core.errors import DeviceError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.cuda.driver_interface import Extents
from tests.support.fake_cuda import FakeDriver, Piece

_GARBAGE = 0xC3


@dataclass(eq=False)
class Stream:
    """Work that is queued on a GPU."""

    number: int
    queue: list[Callable[[], None]] = field(default_factory=list)


class _Held:
    """Memory as its owner has it: when that is gone, so is the memory, in the order of the stream's work."""

    def __init__(self, piece: Piece, stream: Stream) -> None:
        self.address = piece.address
        self._end = weakref.finalize(self, stream.queue.append, piece.free)

    def free(self) -> None:
        """Give it back now."""
        self._end()


@dataclass
class LateGpus(FakeDriver):
    """`count` GPUs; `open` says with which of them a thread works."""

    def __post_init__(self) -> None:
        self._here = local()
        self._owners: dict[int, int] = {}

    def open(self, number: int) -> None:
        if not 0 <= number < self.count:
            raise DeviceError(f"there is no GPU number {number}")
        super().open(number)
        self._here.number = number

    @property
    def current(self) -> int:
        """The GPU that this thread has open."""
        number: int | None = getattr(self._here, "number", None)
        if number is None:
            raise DeviceError("no GPU is open in this thread; open one first")
        return number

    def stream(self) -> Any:
        return Stream(self.current)

    def wait(self, stream: Stream) -> None:
        super().wait(stream)
        while stream.queue:
            stream.queue.pop(0)()

    def allocate(self, nbytes: int, stream: Stream) -> Any:
        self._mine(stream)
        piece = super().allocate(nbytes, stream)
        piece.data[...] = _GARBAGE
        self._owners[piece.address] = stream.number
        return _Held(piece, stream)

    def write(self, address: int, array: Array, stream: Stream) -> None:
        self.wait(stream)
        self._on(stream, address, array.nbytes)
        super().write(address, array, stream)

    def read(self, address: int, array: Array, stream: Stream) -> None:
        self.wait(stream)
        self._on(stream, address, array.nbytes)
        super().read(address, array, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        if max(target, source) < min(target, source) + nbytes:
            raise DeviceError("CUDA: INVALID_VALUE, what is copied overlaps")
        self._later(stream, partial(super().copy, target, source, nbytes, stream))

    def fill(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        self._later(stream, partial(super().fill, address, value, nbytes, stream))

    def launch(
        self, stream: Stream, kernel: Any, grid: Extents, block: Extents, addresses: Sequence[int], shared: int = 0
    ) -> None:
        for address in addresses:
            self._on(stream, address, 0)
        self._later(stream, partial(super().launch, stream, kernel, grid, block, addresses, shared))

    def capture(self, stream: Stream, work: Callable[[], None]) -> Callable[[], None]:
        before, stream.queue = stream.queue, []
        try:
            work()
            queued = tuple(stream.queue)
        finally:
            stream.queue = before
        self.asked.append(f"graph of {len(queued)}")

        def run(_: object = work) -> None:
            self._later(stream, *queued)

        return run

    def _later(self, stream: Stream, *work: Callable[[], None]) -> None:
        self._mine(stream)
        stream.queue += work

    def _mine(self, stream: Stream) -> None:
        if stream.number != self.current:
            raise DeviceError(f"CUDA: INVALID_CONTEXT, GPU {self.current} is open, not {stream.number}")

    def _on(self, stream: Stream, address: int, nbytes: int) -> None:
        self._mine(stream)
        for piece in self.pieces:
            inside = piece.address <= address and address + nbytes <= piece.address + piece.data.nbytes
            if inside and self._owners[piece.address] != stream.number:
                raise DeviceError(f"CUDA: ILLEGAL_ADDRESS {address:#x} is on another GPU", lasting=True)


def random_values(size: int, seed: int) -> Array:
    """Whole numbers that stay exact when they are doubled often."""
    return np.random.default_rng(seed).integers(-99, 99, size).astype(np.float32)
