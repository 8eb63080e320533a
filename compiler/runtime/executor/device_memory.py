"""The memory of an executor on one device. An executor has one for each device; the host's is the first.

A memory holds the buffers of the calls on its device. Other devices' results arrive by copies alone. A caller's array
may replace a buffer (a *borrow*); bound calls follow.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.device import AnyArray, Device
from retune.compiler.runtime.executor.plan import READ_ONLY, BufferSpec, Plan


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of memory of a running executor, by purpose; `devices` is memory of devices other than the CPU."""

    inputs: int
    outputs: int
    constants: int
    arena: int
    workspace: int
    devices: int = 0

    @property
    def peak(self) -> int:
        """All memory on the CPU; an executor allocates everything at creation, so this is also the minimum."""
        return self.inputs + self.outputs + self.constants + self.arena + self.workspace


class DeviceMemory(ABC):
    """The memory of one executor on one device. Buffers are named by the numbers of their owners."""

    device: Device
    _plan: Plan
    _is_open = False

    def _claim(self) -> None:
        """Reject a second executor, which would replace the buffers of the first. Raises: OptionError."""
        if self._is_open:
            raise OptionError("this is the memory of another executor already; make another one for this")
        self._is_open = True

    def _check_borrow(self, spec: BufferSpec, what: str, shares: Callable[[int], bool], others: Iterable[int]) -> None:
        """Check that an array may replace a buffer; `shares(other)` says whether it shares memory with buffer `other`.

        Raises: OptionError.
        """
        root = self._plan.buffers[spec.storage]
        if spec.nbytes != root.nbytes:
            raise OptionError(f"{what} {spec.name}: it is the beginning of {root.name}, and goes nowhere else")
        for number in others:
            other = self._plan.buffers[number]
            both_read = root.kind in READ_ONLY and other.kind in READ_ONLY
            if number != spec.storage and not both_read and shares(number):
                shared = f"shares memory with {other.name}, and one of them is written"
                raise OptionError(f"{what} {spec.name}: the array {shared}")

    @abstractmethod
    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:
        """Allocate the buffers `used`, and set constants.

        Raises: OptionError when this is the memory of another executor.
        """

    @abstractmethod
    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers. Raises: ArtifactError or DeviceError for code of another kind of device."""

    @abstractmethod
    def capture(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """Consecutive calls bound here, as few steps as the device can make of them."""

    @abstractmethod
    def read(self, number: int, out: Array) -> None:
        """Copy a buffer into an array of its type and size, after all earlier calls."""

    @abstractmethod
    def write(self, number: int, values: Array) -> None:
        """Copy an array into a buffer."""

    @abstractmethod
    def copy_in(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        """Copy an array on this device into a buffer.

        Raises: OptionError when it does not fit; DeviceError when it is elsewhere or cannot be used in place.
        """

    @abstractmethod
    def copy_out(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        """Copy a buffer into an array on this device; done on return. Raises: like `copy_in`."""

    @abstractmethod
    def borrow(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        """Use a caller's array on this device for a buffer and all views of it.

        Raises: like `copy_in`; OptionError when it shares memory with another buffer and one of them is written, or
        when the buffer is the beginning of another.
        """

    @abstractmethod
    def release_borrow(self, number: int) -> None:
        """Use own memory for a buffer again, in place of a caller's array."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for all earlier calls."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory allocated here."""
