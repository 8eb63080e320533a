"""The interface of the CUDA driver: the few calls that this project makes.

`retune.compiler.runtime.cuda` implements it with NVIDIA's packages; a simulator or a recorder implements the same
methods. Addresses and sizes are in bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retune.compiler.gpu_facts import GpuFacts, capability_of
from retune.compiler.runtime.artifact import Array

Extents = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """What the driver says of a device: its number, name and architecture (sm_90), limits of a block (its shared memory
    in bytes is what it can be launched with), and facts.
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
        """The device in words: the same text means that times may be compared."""
        return f"{self.name}, sm_{capability_of(self.arch)}, {self.facts.multiprocessors} multiprocessors"


class Memory(Protocol):
    """A piece of a device's memory, which lives as long as the object."""

    @property
    def address(self) -> int:
        """Where it begins."""

    def free(self) -> None:
        """Give it back now."""


class Driver(Protocol):
    """What is asked of CUDA. Every method raises DeviceError when that fails."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """All devices, in CUDA's order."""

    def open(self, number: int) -> None:
        """Work with this device from now on, in this thread."""

    def stream(self) -> Any:
        """A new queue of work."""

    def wait(self, stream: Any) -> None:
        """Until all that was queued is done."""

    def handle(self, stream: Any) -> int:
        """What other libraries know a stream by, as DLPack has it."""

    def allocate(self, nbytes: int, stream: Any) -> Memory:
        """A piece of memory, at a multiple of 256, for work on the stream: what is queued there after this may use it,
        and nothing gets it again before what was queued there until it is given back is done.
        """

    def write(self, address: int, array: Array, stream: Any) -> None:
        """Copy a contiguous array to the device; done when this returns."""

    def read(self, address: int, array: Array, stream: Any) -> None:
        """Copy from the device into a contiguous array; done when this returns."""

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Queue a copy inside of the device, or from another one."""

    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        """Queue the writing of one byte everywhere."""

    def load(self, code: bytes, kind: str, shared: Mapping[str, int]) -> dict[str, Any]:
        """The kernels of these names; `kind` of the code is "cubin" or "ptx". `shared` are the bytes of shared memory
        beyond those of the code that a launch of each will give a block.
        """

    def launch(
        self, stream: Any, kernel: Any, grid: Extents, block: Extents, addresses: Sequence[int], shared: int = 0
    ) -> None:
        """Queue a kernel with the addresses of its buffers and, for every block, as much shared memory as was said when
        it was loaded.
        """

    def record(self, stream: Any) -> Any:
        """Queue a moment to measure time from or to."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds from one moment to another, both of which are over when this returns."""

    def captured(self, stream: Any, work: Callable[[], None]) -> Callable[[], None]:
        """What queues all that `work` queues on the stream, as one piece; `work` itself is not done."""
