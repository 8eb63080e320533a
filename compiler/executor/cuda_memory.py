"""The memory of an executor on a GPU, and calls of kernels on it, which are queued on one stream."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from retune.compiler.errors import DeviceError, OptionError
from retune.compiler.executor.device_constants import CONSTANTS
from retune.compiler.executor.device_memory import DeviceMemory
from retune.compiler.executor.plan import BufferKind, BufferSpec, Plan
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.cuda_array import DeviceArray
from retune.compiler.runtime.cuda_driver import Driver
from retune.compiler.runtime.cuda_program import DeviceProgram
from retune.compiler.runtime.device import cuda


class CudaMemory(DeviceMemory):
    """Memory of the GPU number `number`, which `driver` opens; all work is queued on `stream`."""

    def __init__(self, driver: Driver, number: int = 0, *, graphs: bool = False) -> None:
        """With `graphs` calls that follow each other are captured in the first run, and launched as one graph in those
        after it.

        Raises: DeviceError when there is no such GPU; OptionError when `driver` is none, or `number` no integer.
        """
        if not hasattr(driver, "open") or not hasattr(driver, "stream"):
            raise OptionError(
                f"a driver is needed, as retune.compiler.runtime.cuda.driver() gives it, not {driver!r:.80}"
            )
        self.device = cuda(number)
        driver.open(number)
        self.driver = driver
        self.stream: Any = driver.stream()
        self.graphs = graphs
        self.version = 0
        """Changes whenever a buffer, or the workspace, gets other memory."""
        self._workspace: DeviceArray | None = None
        self._arena: DeviceArray | None = None
        self._programs: dict[str, DeviceProgram] = {}

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:
        """Allocate the buffers that calls here touch; intermediates share an arena as they do on the CPU, and constants
        are shared with other executors that have them here.
        """
        self._claim()
        self.ready()
        self._plan = plan
        has_intermediates = any(plan.buffers[number].kind is BufferKind.INTERMEDIATE for number in used)
        self._arena = self._zeros((plan.arena_bytes,), "uint8") if has_intermediates and plan.arena_bytes else None
        constant = {number for number in used if plan.buffers[number].kind is BufferKind.CONSTANT}
        here = self.driver, self.stream, self.device.device_id
        self._shared = {number: CONSTANTS.on_gpu(*here, constants[number]) for number in constant}
        """The constants, which other executors may read too."""
        self._own = {number: self._new(number) for number in used if number not in constant}
        for number, shared in self._shared.items():
            self._own[number] = shared.array.view(0, plan.buffers[number].shape, plan.buffers[number].dtype)
        self._borrowed: set[int] = set()
        """Which buffers are arrays of the caller."""

    def ready(self) -> None:
        """Open the GPU: the caller, or another memory, may have opened another one."""
        self.driver.open(self.device.device_id)

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers; code is loaded once, however many calls there are."""
        self.ready()
        if artifact.name not in self._programs:
            self._programs[artifact.name] = DeviceProgram(self.driver, self.stream, artifact)
        # One workspace for all: kernels of one stream run one after the other.
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

    def capture(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """The calls, or with `graphs` one step that launches them as a graph."""
        return [_CapturedGraph(self, calls)] if self.graphs else calls

    def read(self, number: int, out: Array) -> None:
        """Copy a buffer into an array of its type and size."""
        self.ready()
        self._own[number].read(out)

    def write(self, number: int, values: Array) -> None:
        """Copy an array into a buffer; a constant that others may read gets own memory first."""
        self.ready()
        # Copy on write.
        if number in self._shared:
            self._put(number, self._new(number))
            del self._shared[number]
        array = self._own[number]
        array.write(values.reshape(array.shape))

    def copy_in(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Copy an array that lies on this GPU into a buffer, in own memory."""
        source = self._shown(spec, array, what)
        self.release_borrow(spec.storage)
        self._copy(source, self._own[spec.storage])

    def copy_out(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Copy a buffer into an array that lies on this GPU."""
        self._copy(self._own[spec.storage], self._shown(spec, array, what))

    def borrow(self, spec: BufferSpec, array: Any, what: str) -> None:
        """Use an array of the caller on this GPU for a buffer and all views of it."""
        given = self._shown(spec, array, what)
        self._check_borrow(spec, what, lambda other: given.overlaps(self._own[other]), self._own)
        root = self._plan.buffers[spec.storage]
        self._borrowed.add(spec.storage)
        self._put(spec.storage, given.view(0, root.shape, root.dtype))

    def release_borrow(self, number: int) -> None:
        """Use own memory for a buffer again."""
        if number in self._borrowed:
            self._borrowed.remove(number)
            self.ready()
            self._put(number, self._new(number))

    def wait(self) -> None:
        """Return when all calls before are done."""
        self.ready()
        self.driver.wait(self.stream)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that was allocated here."""
        spare = [array for array in (self._arena, self._workspace) if array is not None]
        own = (number for number in self._own if number not in self._borrowed and not self._in_arena(number))
        return sum(array.nbytes for array in (*spare, *(self._own[number] for number in own)))

    def _in_arena(self, number: int) -> bool:
        return self._plan.buffers[number].kind is BufferKind.INTERMEDIATE and self._arena is not None

    def _put(self, number: int, array: DeviceArray) -> None:
        if array.address == self._own[number].address:  # the same memory, which calls use already
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
        """An array of zeros: they are legal indices for a call that is made out of order."""
        array = self._made(shape, dtype)
        if array.nbytes:
            self.driver.fill(array.address, 0, array.nbytes, self.stream)
        return array

    def _made(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        return DeviceArray.allocate(self.driver, self.stream, self.device.device_id, shape, dtype)

    def _shown(self, spec: BufferSpec, array: Any, what: str) -> DeviceArray:
        self.ready()
        found = DeviceArray.borrowed(self.driver, self.stream, array)
        if found.device != self.device:
            raise DeviceError(f"{what} {spec.name} lies on {found.device}; the network needs it on {self.device}")
        if (found.shape, found.dtype) != (spec.shape, spec.dtype):
            wanted, given = f"{spec.dtype}{list(spec.shape)}", f"{found.dtype}{list(found.shape)}"
            raise OptionError(f"{what} {spec.name} must be {wanted}, not {given}")
        return found

    def _copy(self, source: DeviceArray, target: DeviceArray) -> None:
        nbytes = min(source.nbytes, target.nbytes)  # a buffer may show the beginning of a larger one
        if nbytes and source.address != target.address:  # CUDA copies nothing onto itself
            self.driver.copy(target.address, source.address, nbytes, self.stream)
        self.wait()  # the caller may write to the one, or read the other, as soon as this returns


class _DeviceCall:
    """One call of a kernel on buffers of a memory, wherever they are by now."""

    def __init__(self, memory: CudaMemory, program: DeviceProgram, buffers: Sequence[int]) -> None:
        self._memory, self._program, self._buffers = memory, program, buffers
        self._bind()

    def __call__(self) -> None:
        self._memory.ready()
        # Addresses are baked into bound calls: rebound only when memory has changed.
        if self._version != self._memory.version:
            self._bind()
        self._call()

    def _bind(self) -> None:
        self._version = self._memory.version
        arrays = self._memory.arrays(self._program.artifact, self._buffers)
        self._call = self._program.bind(arrays, self._memory.workspace)


class _CapturedGraph:
    """Calls that are launched as one graph. The first time, and after each change of their memory, they are made one by
    one and captured then: loading code cannot be captured.
    """

    def __init__(self, memory: CudaMemory, calls: Sequence[Callable[[], object]]) -> None:
        self._memory, self._calls = memory, calls
        self._graph: Callable[[], object] | None = None
        self._version = -1

    def __call__(self) -> None:
        memory = self._memory
        if self._version == memory.version and self._graph is not None:
            memory.ready()  # as every call of them does
            self._graph()
            return
        self._graph = None  # it uses memory that may be gone
        _make(self._calls)
        self._version = memory.version
        # Captured after a run outside of a graph: loading code and growing the workspace cannot be captured.
        self._graph = memory.driver.captured(memory.stream, partial(_make, self._calls))


def _make(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
