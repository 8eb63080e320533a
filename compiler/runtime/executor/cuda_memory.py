"""The memory of an executor on a GPU, and calls of kernels on it, queued on one stream.

A GPU has a constant once, while any executor of this process has it, and nothing writes to it. A deleted executor has
waited for its calls, so nothing reads the freed memory.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from retune.compiler.core.errors import DeviceError, OptionError
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.buffers import address
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.driver_interface import Driver, Stream
from retune.compiler.runtime.cuda.program import DeviceProgram
from retune.compiler.runtime.device import AnyArray, cuda
from retune.compiler.runtime.executor.device_memory import DeviceMemory
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Plan


@dataclass(frozen=True, eq=False)
class DeviceConstant:
    """A constant, with its array on a GPU."""

    driver: Driver
    source: Array
    array: DeviceArray


class DeviceConstants:
    """The constants on GPUs, by their address in the CPU's memory, which they keep alive."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[object, ...], DeviceConstant] = WeakValueDictionary()
        self._lock = threading.Lock()

    def on_gpu(self, driver: Driver, stream: Stream, number: int, source: Array) -> DeviceConstant:
        """A read-only copy of `source` on GPU `number`, which is open; `stream` copies it there if needed.

        Raises: DeviceError when there is no memory.
        """
        # The address identifies the contents: constants are read-only, and the entry keeps its array, so the address is
        # not reused.
        key = (id(driver), number, address(source), source.shape, source.dtype.name)
        with self._lock:
            constant = self._known.get(key)
            if constant is None:
                array = DeviceArray.allocate(driver, stream, number, source.shape, source.dtype.name)
                array.write(source)
                constant = self._known[key] = DeviceConstant(driver, source, array)
            return constant


CONSTANTS = DeviceConstants()
"""The constants of this process."""


class CudaMemory(DeviceMemory):
    """Memory of GPU `number`, which `driver` opens; all work is queued on `stream`."""

    def __init__(self, driver: Driver, number: int = 0, *, graphs: bool = False) -> None:
        """With `graphs`, consecutive calls are captured in the first run and launched as one graph in later runs.

        Raises: DeviceError when there is no such GPU; OptionError for an invalid `driver` or `number`.
        """
        if not hasattr(driver, "open") or not hasattr(driver, "stream"):
            raise OptionError(
                f"a driver is needed, as retune.compiler.runtime.cuda.driver.driver() gives it, not {driver!r:.80}"
            )
        self.device = cuda(number)
        driver.open(number)
        self.driver = driver
        self.stream = driver.stream()
        self.graphs = graphs
        self.version = 0
        """Changes with the memory of any buffer or of the workspace."""
        self._workspace: DeviceArray | None = None
        self._arena: DeviceArray | None = None
        self._programs: dict[str, DeviceProgram] = {}

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:
        """Allocate the buffers used here: intermediates in one arena, constants shared between executors."""
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
        """The buffers that are arrays of the caller."""

    def ready(self) -> None:
        """Select the GPU: the caller, or another memory, may have selected another."""
        self.driver.open(self.device.device_id)

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers; its code is loaded once for all calls."""
        self.ready()
        if artifact.name not in self._programs:
            self._programs[artifact.name] = DeviceProgram(self.driver, self.stream, artifact)
        # One workspace for all: kernels of one stream run one after another.
        need = artifact.workspace_bytes
        if need and (self._workspace is None or self._workspace.nbytes < need):
            self._workspace = self._allocate((need,), "uint8")
            self.version += 1  # calls with the smaller workspace rebind
        return _DeviceCall(self, self._programs[artifact.name], buffers)

    @property
    def workspace(self) -> int:
        """The address of the kernels' scratch memory, 0 if none needs any."""
        return 0 if self._workspace is None else self._workspace.address

    def arrays(self, artifact: KernelArtifact, buffers: Sequence[int]) -> list[DeviceArray]:
        """The buffers in the shapes and dtypes of a kernel's arguments."""
        roots = (self._own[self._plan.buffers[number].storage] for number in buffers)
        return [root.view(0, spec.shape, spec.dtype) for root, spec in zip(roots, artifact.args, strict=True)]

    def capture(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """The calls, or with `graphs` one step that launches them as a graph."""
        return [_CapturedGraph(self, calls)] if self.graphs else calls

    def read(self, number: int, out: Array) -> None:
        self.ready()
        self._own[number].read(out)

    def write(self, number: int, values: Array) -> None:
        """Copy an array into a buffer; a shared constant gets its own memory first."""
        self.ready()
        # Copy on write.
        if number in self._shared:
            self._put(number, self._new(number))
            del self._shared[number]
        array = self._own[number]
        array.write(values.reshape(array.shape))

    def copy_in(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        source = self._view_of(spec, array, what)
        self.release_borrow(spec.storage)
        self._copy(source, self._own[spec.storage])

    def copy_out(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        self._copy(self._own[spec.storage], self._view_of(spec, array, what))

    def borrow(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        """Use a caller's array on this GPU for a buffer and all views of it."""
        borrowed = self._view_of(spec, array, what)
        self._check_borrow(spec, what, lambda other: borrowed.overlaps(self._own[other]), self._own)
        root = self._plan.buffers[spec.storage]
        self._borrowed.add(spec.storage)
        self._put(spec.storage, borrowed.view(0, root.shape, root.dtype))

    def release_borrow(self, number: int) -> None:
        if number in self._borrowed:
            self._borrowed.remove(number)
            self.ready()
            self._put(number, self._new(number))

    def wait(self) -> None:
        self.ready()
        self.driver.wait(self.stream)

    @property
    def nbytes(self) -> int:
        spare = [array for array in (self._arena, self._workspace) if array is not None]
        own = (number for number in self._own if number not in self._borrowed and not self._in_arena(number))
        return sum(array.nbytes for array in (*spare, *(self._own[number] for number in own)))

    def _in_arena(self, number: int) -> bool:
        return self._plan.buffers[number].kind is BufferKind.INTERMEDIATE and self._arena is not None

    def _put(self, number: int, array: DeviceArray) -> None:
        if array.address == self._own[number].address:  # the same memory, which calls use already
            self._own[number] = array
            return
        self.wait()  # queued work may use the old memory
        self._own[number] = array
        self.version += 1

    def _new(self, number: int) -> DeviceArray:
        spec = self._plan.buffers[number]
        if self._in_arena(number) and self._arena is not None:
            return self._arena.view(spec.offset, spec.shape, spec.dtype)
        return self._zeros(spec.shape, spec.dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """An array of zeros: valid indices for a call out of order."""
        array = self._allocate(shape, dtype)
        if array.nbytes:
            self.driver.fill(array.address, 0, array.nbytes, self.stream)
        return array

    def _allocate(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        return DeviceArray.allocate(self.driver, self.stream, self.device.device_id, shape, dtype)

    def _view_of(self, spec: BufferSpec, array: AnyArray, what: str) -> DeviceArray:
        self.ready()
        view = DeviceArray.borrow(self.driver, self.stream, array)
        if view.device != self.device:
            raise DeviceError(f"{what} {spec.name} lies on {view.device}; the network needs it on {self.device}")
        if (view.shape, view.dtype) != (spec.shape, spec.dtype):
            wanted, actual = f"{spec.dtype}{list(spec.shape)}", f"{view.dtype}{list(view.shape)}"
            raise OptionError(f"{what} {spec.name} must be {wanted}, not {actual}")
        return view

    def _copy(self, source: DeviceArray, target: DeviceArray) -> None:
        nbytes = min(source.nbytes, target.nbytes)  # a buffer may be the beginning of a larger one
        if nbytes and source.address != target.address:  # CUDA copies nothing onto itself
            self.driver.copy(target.address, source.address, nbytes, self.stream)
        self.wait()  # after the return the caller may write to the source or read the target


class _DeviceCall:
    """One call of a kernel on buffers of a memory, wherever they are now."""

    def __init__(self, memory: CudaMemory, program: DeviceProgram, buffers: Sequence[int]) -> None:
        self._memory, self._program, self._buffers = memory, program, buffers
        self._bind()

    def __call__(self) -> None:
        self._memory.ready()
        # Addresses are baked into bound calls: rebound only after memory has changed.
        if self._version != self._memory.version:
            self._bind()
        self._call()

    def _bind(self) -> None:
        self._version = self._memory.version
        arrays = self._memory.arrays(self._program.artifact, self._buffers)
        self._call = self._program.bind(arrays, self._memory.workspace)


class _CapturedGraph:
    """Calls that are launched as one graph. The first time, and after each change of their memory, they are made one by
    one and then captured: loading code cannot be captured.
    """

    def __init__(self, memory: CudaMemory, calls: Sequence[Callable[[], object]]) -> None:
        self._memory, self._calls = memory, calls
        self._graph: Callable[[], object] | None = None
        self._version = -1

    def __call__(self) -> None:
        memory = self._memory
        if self._version == memory.version and self._graph is not None:
            memory.ready()  # as every call does
            self._graph()
            return
        self._graph = None  # it uses memory that may be freed
        _call_all(self._calls)
        self._version = memory.version
        # Captured after a run outside of a graph: loading code and growing the workspace cannot be captured.
        self._graph = memory.driver.capture(memory.stream, partial(_call_all, self._calls))


def _call_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
