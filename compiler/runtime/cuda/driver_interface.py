"""The interface of the CUDA driver: the few calls that this project makes.

`retune.compiler.runtime.cuda.driver` implements it with NVIDIA's packages; a simulator or a recorder implements the
same methods. Addresses and sizes are in bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retune.compiler.core.gpu_facts import GpuFacts, capability_of
from retune.compiler.runtime.artifact import Array

Extents = tuple[int, int, int]
Stream = Any
"""A queue of work on a device. Only the driver that made it looks inside."""
Event = Any
"""A timed point in the work of a stream. Only the driver that made it looks inside."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """The driver's description of a device: its number, name and architecture (sm_90), limits of a block (with the
    shared memory in bytes that a launch can have), and facts.
    """

    number: int
    name: str
    arch: str
    max_shared_memory_per_block: int
    max_threads_per_block: int
    warp_size: int
    facts: GpuFacts

    @property
    def identity(self) -> str:
        """The device in words; times are comparable if the texts are equal."""
        return f"{self.name}, sm_{capability_of(self.arch)}, {self.facts.multiprocessors} multiprocessors"


class Memory(Protocol):
    """Memory of a device; freed with the object."""

    @property
    def address(self) -> int:
        """The first address."""

    def free(self) -> None:
        """Free the memory now."""


class Driver(Protocol):
    """The calls to CUDA. Every method raises DeviceError on failure."""

    def devices(self) -> tuple[GpuDevice, ...]: ...

    def open(self, number: int) -> None:
        """Select device `number` in this thread."""

    def stream(self) -> Stream:
        """A new stream."""

    def wait(self, stream: Stream) -> None:
        """Wait until all queued work is done."""

    def handle(self, stream: Stream) -> int:
        """The stream's handle for other libraries, as DLPack defines it."""

    def allocate(self, nbytes: int, stream: Stream) -> Memory:
        """Stream-ordered, 256-byte aligned. Work queued after this call may use the memory; it is reused only after the
        work queued before its release.
        """

    def write(self, address: int, array: Array, stream: Stream) -> None:
        """Copy a contiguous array to the device; done on return."""

    def read(self, address: int, array: Array, stream: Stream) -> None:
        """Copy from the device into a contiguous array; done on return."""

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Queue a copy inside of the device, or from another device."""

    def fill(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        """Queue a fill with one byte value."""

    def load(self, code: bytes, kind: str, shared: Mapping[str, int]) -> dict[str, object]:
        """The kernels of these names; `kind` of the code is "cubin" or "ptx". `shared` has, by kernel, the bytes of
        dynamic shared memory per block of each launch.
        """

    def launch(
        self, stream: Stream, kernel: object, grid: Extents, block: Extents, addresses: Sequence[int], shared: int = 0
    ) -> None:
        """Queue a kernel with its buffers' addresses and `shared` bytes of dynamic shared memory."""

    def record(self, stream: Stream) -> Event:
        """Queue a timing event."""

    def elapsed(self, start: Event, end: Event) -> float:
        """Seconds between two events, after waiting for both."""

    def capture(self, stream: Stream, work: Callable[[], None]) -> Callable[[], None]:
        """A function that queues, as one graph, all that `work` queues on the stream; `work` itself is not executed."""
