"""In: the buffers of a plan. Out: their memory on a device beside the processor, and calls of kernels on it.

Always: every device has memory of its own for what its calls touch; what another device writes gets there by a copy
alone. Arrays of the caller's on a device may stand for buffers; calls and what was recorded of them follow.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from retune.compiler.errors import ArtifactError, DeviceError, OptionError
from retune.compiler.executor.device_constants import CONSTANTS
from retune.compiler.executor.memory import Memory
from retune.compiler.executor.plan import READ_ONLY, BufferKind, BufferSpec, Plan
from retune.compiler.runtime.arguments import MOST_THREADS, is_thread_count
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.cuda_array import DeviceArray
from retune.compiler.runtime.cuda_driver import Driver
from retune.compiler.runtime.cuda_program import DeviceProgram
from retune.compiler.runtime.device import Device, cpu, cuda
from retune.compiler.runtime.loader import load_kernels


class Store(Protocol):
    """The memory of one executor on one device. Buffers are named by the numbers of those that own memory."""

    device: Device

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:
        """Make room for the buffers `used`, of which constants have their elements then.

        Raises: OptionError when this is the store of another executor.
        """
        ...

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers. Raises: ArtifactError or DeviceError for code of another kind of device."""
        ...

    def replayed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Calls that were bound here as one, recorded by the device where it can."""
        ...

    def read(self, number: int, out: Array) -> None:
        """Copy what a buffer holds into an array of its type and size, when all calls before are done."""
        ...

    def write(self, number: int, values: Array) -> None:
        """Give a buffer its elements."""
        ...

    def take(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Copy an array that lies on this device into a buffer.

        Raises: OptionError when it does not fit; DeviceError when it lies elsewhere or cannot be used as it lies.
        """
        ...

    def give(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Copy what a buffer holds into an array that lies on this device; done when this returns. Raises: as `take`.
        """
        ...

    def exchange(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Use an array of the caller's on this device for a buffer and whatever shows its memory.

        Raises: as `take`; OptionError when it shares memory with another buffer and one of them is written, or when the
        buffer is the beginning of another one.
        """
        ...

    def own(self, number: int) -> None:
        """Use memory of its own for a buffer again."""
        ...

    def wait(self) -> None:
        """Until all calls before are done."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that was made here."""
        ...


class _OfOne:
    """A store, which one executor has: a second one's buffers would take the place of its own."""

    _taken = False

    def _take(self) -> None:
        if self._taken:
            raise OptionError("a store is the memory of one executor on one device; make another one for this")
        self._taken = True


class HostStore(_OfOne):
    """Memory of the processor beside an executor's own; kernels run on `threads` threads."""

    device = cpu()

    def __init__(self, threads: int = 1) -> None:
        """Raises: OptionError when `threads` is none that can be started."""
        if not is_thread_count(threads):
            raise OptionError(f"threads must be a whole number from 1 to {MOST_THREADS}, not {threads!r}")
        self._threads = threads

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:  # noqa: ARG002
        """Make room for all buffers."""
        self._take()
        self._memory = Memory(plan, constants)

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers."""
        if artifact.device is not None:
            raise ArtifactError(f"{artifact.name} is code for {artifact.target}, not for a processor")
        return load_kernels([artifact])[artifact.name].bind([self._memory[one] for one in buffers], self._threads)

    def replayed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """One after the other: there is nothing to record."""
        return partial(_all, calls)

    def read(self, number: int, out: Array) -> None:
        """Copy what a buffer holds."""
        np.copyto(out, self._memory[number].reshape(out.shape))

    def write(self, number: int, values: Array) -> None:
        """Give a buffer its elements."""
        self._memory.own(number)[...] = values.reshape(self._memory[number].shape)

    def take(self, spec: BufferSpec, array: Any, what: str) -> None:  # noqa: ARG002
        """Arrays of the processor are the executor's own matter."""
        raise DeviceError(f"{what} {spec.name}: only an array on a GPU is handed to its device")

    give = exchange = take

    def own(self, number: int) -> None:
        """It has nothing else."""

    def wait(self) -> None:
        """Calls are done when they return."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arena, and of all arrays."""
        return self._memory.use(0).peak


class CudaStore(_OfOne):
    """Memory of the GPU number `number`, which `driver` opens; all work is queued on `stream`."""

    def __init__(self, driver: Driver, number: int = 0) -> None:
        """Raises: DeviceError when there is no such GPU; OptionError when `driver` is none, or `number` no number."""
        if not hasattr(driver, "open") or not hasattr(driver, "stream"):
            raise OptionError(
                f"a driver is needed, as retune.compiler.runtime.cuda.driver() gives it, not {driver!r:.80}"
            )
        self.device = cuda(number)
        driver.open(number)
        self.driver = driver
        self.stream: Any = driver.stream()
        self.version = 0
        """Changes whenever a buffer, or the workspace, gets other memory."""
        self._workspace: DeviceArray | None = None
        self._arena: DeviceArray | None = None
        self._programs: dict[str, DeviceProgram] = {}

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:
        """Make room for the buffers that calls here touch; temporary ones share it as they do on a processor, and
        constants are those of other executors that have them here.
        """
        self._take()
        self.ready()
        self._plan = plan
        temporary = any(plan.buffers[number].kind is BufferKind.INTERMEDIATE for number in used)
        self._arena = self._zeros((plan.arena_bytes,), "uint8") if temporary and plan.arena_bytes else None
        fixed = {number for number in used if plan.buffers[number].kind is BufferKind.CONSTANT}
        here = self.driver, self.stream, self.device.device_id
        self._shared = {number: CONSTANTS.on_gpu(*here, constants[number]) for number in fixed}
        """The constants, which others may read too."""
        self._own = {number: self._new(number) for number in used if number not in fixed}
        for number, constant in self._shared.items():
            self._own[number] = constant.array.view(0, plan.buffers[number].shape, plan.buffers[number].dtype)
        self._foreign: set[int] = set()
        """Which buffers have memory of the caller's."""

    def ready(self) -> None:
        """Open the GPU: another store, or the caller, may have opened another one."""
        self.driver.open(self.device.device_id)

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers; code is loaded once, however many calls there are."""
        self.ready()
        if artifact.name not in self._programs:
            self._programs[artifact.name] = DeviceProgram(self.driver, self.stream, artifact)
        need = artifact.workspace_bytes
        if need and (self._workspace is None or self._workspace.nbytes < need):
            self._workspace = self._made((need,), "uint8")
            self.version += 1  # calls that have the smaller one take this one
        return _DeviceCall(self, self._programs[artifact.name], buffers)

    @property
    def workspace(self) -> int:
        """The address of what calls may write to while they run, 0 when none needs any."""
        return 0 if self._workspace is None else self._workspace.address

    def arrays(self, artifact: KernelArtifact, buffers: Sequence[int]) -> list[DeviceArray]:
        """The buffers as a kernel takes them."""
        roots = (self._own[self._plan.buffers[number].storage] for number in buffers)
        return [root.view(0, spec.shape, spec.dtype) for root, spec in zip(roots, artifact.args, strict=True)]

    def replayed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """A graph of the calls, which is launched as one; the first time they are made one by one, as that loads code,
        which cannot be recorded.
        """
        return _Recorded(self, calls)

    def read(self, number: int, out: Array) -> None:
        """Copy what a buffer holds."""
        self.ready()
        self._own[number].read(out)

    def write(self, number: int, values: Array) -> None:
        """Give a buffer its elements; a constant that others may read, too, becomes one of its own."""
        self.ready()
        if number in self._shared:
            self._put(number, self._new(number))
            del self._shared[number]
        array = self._own[number]
        array.write(values.reshape(array.shape))

    def take(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Copy an array that lies on this GPU into a buffer, in memory of its own."""
        source = self._borrowed(spec, array, what)
        self.own(spec.storage)
        self._copied(source, self._own[spec.storage])

    def give(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Copy what a buffer holds into an array that lies on this GPU."""
        self._copied(self._own[spec.storage], self._borrowed(spec, array, what))

    def exchange(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Use an array of the caller's on this GPU for a buffer and whatever shows its memory."""
        given = self._borrowed(spec, array, what)
        root = self._plan.buffers[spec.storage]
        if spec.nbytes != root.nbytes:
            raise OptionError(f"{what} {spec.name}: it is the beginning of {root.name}, and goes nowhere else")
        for other, theirs in self._own.items():
            both_read = spec.kind in READ_ONLY and self._plan.buffers[other].kind in READ_ONLY
            if other != spec.storage and not both_read and given.overlaps(theirs):
                shared = f"shares memory with {self._plan.buffers[other].name}, and one of them is written"
                raise OptionError(f"{what} {spec.name}: the array {shared}")
        self._foreign.add(spec.storage)
        self._put(spec.storage, given.view(0, root.shape, root.dtype))

    def own(self, number: int) -> None:
        """Use memory of its own for a buffer again."""
        if number in self._foreign:
            self._foreign.remove(number)
            self.ready()
            self._put(number, self._new(number))

    def wait(self) -> None:
        """Until all calls before are done."""
        self.ready()
        self.driver.wait(self.stream)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that was made here."""
        spare = [array for array in (self._arena, self._workspace) if array is not None]
        mine = (self._own[number] for number in self._own if number not in self._foreign and not self._in_arena(number))
        return sum(array.nbytes for array in (*spare, *mine))

    def _in_arena(self, number: int) -> bool:
        return self._plan.buffers[number].kind is BufferKind.INTERMEDIATE and self._arena is not None

    def _put(self, number: int, array: DeviceArray) -> None:
        if array.address == self._own[number].address:  # the same memory, which calls have already
            self._own[number] = array
            return
        self.wait()  # what is queued may use the memory that goes
        self._own[number] = array
        self.version += 1

    def _new(self, number: int) -> DeviceArray:
        spec = self._plan.buffers[number]
        if self._in_arena(number) and self._arena is not None:
            return self._arena.view(spec.offset, spec.shape, spec.dtype)
        return self._zeros(spec.shape, spec.dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """An array of numbers that are legal indices, for calls that are made out of turn."""
        array = self._made(shape, dtype)
        if array.nbytes:
            self.driver.fill(array.address, 0, array.nbytes, self.stream)
        return array

    def _made(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        return DeviceArray.made(self.driver, self.stream, self.device.device_id, shape, dtype)

    def _borrowed(self, spec: BufferSpec, array: Any, what: str) -> DeviceArray:
        self.ready()
        found = DeviceArray.borrowed(self.driver, self.stream, array)
        if found.device != self.device:
            raise DeviceError(f"{what} {spec.name} lies on {found.device}; the network needs it on {self.device}")
        if (found.shape, found.dtype) != (spec.shape, spec.dtype):
            wanted, given = f"{spec.dtype}{list(spec.shape)}", f"{found.dtype}{list(found.shape)}"
            raise OptionError(f"{what} {spec.name} must be {wanted}, not {given}")
        return found

    def _copied(self, source: DeviceArray, target: DeviceArray) -> None:
        nbytes = min(source.nbytes, target.nbytes)  # a buffer may show the beginning of a larger one
        if nbytes and source.address != target.address:  # CUDA copies nothing onto itself
            self.driver.copy(target.address, source.address, nbytes, self.stream)
        self.wait()  # the caller may write to the one, or read the other, as soon as this returns


class _DeviceCall:
    """One call of a kernel on buffers of a store, wherever they lie by now."""

    def __init__(self, store: CudaStore, program: DeviceProgram, buffers: Sequence[int]) -> None:
        self._store, self._program, self._buffers = store, program, buffers
        self._bind()

    def __call__(self) -> None:
        self._store.ready()
        if self._version != self._store.version:
            self._bind()
        self._call()

    def _bind(self) -> None:
        self._version = self._store.version
        arrays = self._store.arrays(self._program.artifact, self._buffers)
        self._call = self._program.bind(arrays, self._store.workspace)


class _Recorded:
    """Calls of a store that are launched as one graph after the first time, and after each change of their memory."""

    def __init__(self, store: CudaStore, calls: Sequence[Callable[[], object]]) -> None:
        self._store, self._calls = store, calls
        self._graph: Callable[[], object] | None = None
        self._version = -1

    def __call__(self) -> None:
        store = self._store
        if self._version == store.version and self._graph is not None:
            store.ready()  # as every call of them does
            self._graph()
            return
        self._graph = None  # it uses memory that may be gone
        _all(self._calls)
        self._version = store.version
        self._graph = store.driver.captured(store.stream, partial(_all, self._calls))


def _all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
