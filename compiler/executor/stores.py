"""In: the buffers of a plan. Out: their memory on one device, and calls of kernels on it.

Always: every device has memory of its own for what its calls touch; what another device writes gets there by a copy
alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from compiler.errors import ArtifactError, OptionError
from compiler.executor.memory import Memory
from compiler.executor.plan import BufferKind, Plan
from compiler.runtime.arguments import MOST_THREADS, is_thread_count
from compiler.runtime.artifact import Array, KernelArtifact
from compiler.runtime.cuda_array import DeviceArray
from compiler.runtime.cuda_driver import Driver
from compiler.runtime.cuda_program import DeviceProgram
from compiler.runtime.loader import load_kernels


class Store(Protocol):
    """The memory of a plan on one device."""

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:
        """Make room for the buffers `used`, by the numbers of those that own memory."""
        ...

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers. Raises: ArtifactError or DeviceError for code of another kind of device."""
        ...

    def replayed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Calls that were bound here as one, recorded by the device where it can."""
        ...

    def read(self, number: int) -> Array:
        """What a buffer holds; all calls before are done. It may be the memory itself."""
        ...

    def write(self, number: int, values: Array) -> None:
        """Give a buffer its elements."""
        ...


class HostStore:
    """Memory of the processor; kernels run on `threads` threads."""

    def __init__(self, threads: int = 1) -> None:
        """Raises: OptionError when `threads` is none that can be started."""
        if not is_thread_count(threads):
            raise OptionError(f"threads must be a whole number from 1 to {MOST_THREADS}, not {threads!r}")
        self._threads = threads

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:  # noqa: ARG002
        """Make room for all buffers."""
        self._memory = Memory(plan, constants)

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers."""
        if artifact.device is not None:
            raise ArtifactError(f"{artifact.name} is code for {artifact.target}, not for a processor")
        return load_kernels([artifact])[artifact.name].bind([self._memory[one] for one in buffers], self._threads)

    def replayed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """One after the other: there is nothing to record."""
        return partial(_all, calls)

    def read(self, number: int) -> Array:
        """The memory itself."""
        return self._memory[number]

    def write(self, number: int, values: Array) -> None:
        """Give a buffer its elements."""
        if self._memory[number].flags.writeable:  # else it is a constant, which is here from the start
            self._memory[number][...] = values.reshape(self._memory[number].shape)


class CudaStore:
    """Memory of the GPU number `number`, which `driver` opens; all work is queued on `stream`."""

    def __init__(self, driver: Driver, number: int = 0) -> None:
        driver.open(number)
        self._driver = driver
        self._number = number
        self.stream: Any = driver.stream()
        self._workspace: DeviceArray | None = None

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:  # noqa: ARG002
        """Make room for the buffers that calls here touch; temporary ones share it as they do on a processor."""
        self._driver.open(self._number)
        self._plan = plan
        self._own: dict[int, DeviceArray] = {}
        arena = self._made((plan.arena_bytes,), "uint8") if plan.arena_bytes else None
        for number in used:
            spec = plan.buffers[number]
            if spec.kind is BufferKind.INTERMEDIATE and arena is not None:
                self._own[number] = arena.view(spec.offset, spec.shape, spec.dtype)
            else:
                self._own[number] = self._made(spec.shape, spec.dtype)

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers."""
        self._driver.open(self._number)
        need = artifact.workspace_bytes
        if need and (self._workspace is None or self._workspace.nbytes < need):
            self._workspace = self._made((need,), "uint8")  # calls that have the smaller one keep it
        arrays = [
            self._array(number).view(0, spec.shape, spec.dtype)
            for number, spec in zip(buffers, artifact.args, strict=True)
        ]
        address = self._workspace.address if self._workspace is not None else 0
        call = DeviceProgram(self._driver, self.stream, artifact).bind(arrays, address)
        kept = (arrays, self._workspace)

        def run() -> object:
            self._driver.open(self._number)  # another store may have opened another GPU
            call()
            return kept

        return run

    def replayed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """A graph of the calls, which is launched as one; the first time they are made one by one, as that loads code,
        which cannot be recorded.
        """
        graphs: list[Callable[[], object]] = []

        def run() -> None:
            if graphs:
                self._driver.open(self._number)  # as every call of them does
                graphs[0]()
                return
            _all(calls)
            graphs.append(self._driver.captured(self.stream, lambda: _all(calls)))

        return run

    def read(self, number: int) -> Array:
        """A copy of what a buffer holds."""
        self._driver.open(self._number)
        return self._array(number).numpy()

    def write(self, number: int, values: Array) -> None:
        """Give a buffer its elements."""
        self._driver.open(self._number)
        array = self._array(number)
        array.write(values.reshape(array.shape))

    def _array(self, number: int) -> DeviceArray:
        return self._own[self._plan.buffers[number].storage]

    def _made(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        return DeviceArray.made(self._driver, self.stream, self._number, shape, dtype)


def _all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
