"""The memory of an executor on the CPU: an array for every buffer of its plan, and the calls bound to them.

Arrays are aligned, of the buffer's shape and type; views follow their buffer; no written buffer shares memory with
another, except as planned. Constants are the network's, held once for all executors: only a constant that parameters
are loaded into gets own memory.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from math import prod

import numpy as np

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.arguments import require_thread_count
from retune.compiler.runtime.artifact import ALIGNMENT, Array, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array, aligned_zeros, constant_array
from retune.compiler.runtime.device import AnyArray, cpu
from retune.compiler.runtime.executor.argument_checks import as_array, check_fit, copy_to, shared_array
from retune.compiler.runtime.executor.device_memory import DeviceMemory, MemoryUse
from retune.compiler.runtime.executor.plan import READ_ONLY, BufferKind, BufferSpec, Plan
from retune.compiler.runtime.loader import BoundKernel, Kernel, load_kernels
from retune.compiler.runtime.sequence import KernelSequence

HostFunction = Callable[..., object]
"""Gets the inputs of a call, read-only, and then the outputs to fill."""


class HostCall:
    """One call of a Python function by a plan; its result is ignored, its exceptions reach the caller of the run."""

    __slots__ = ("_arrays", "_function", "_inputs")

    def __init__(self, function: HostFunction, arrays: Sequence[Array], inputs: int) -> None:
        self._function = function
        self._inputs = inputs
        self._arrays = list(arrays)
        for index, array in enumerate(arrays):
            self.rebind(index, array)

    def __call__(self) -> None:
        self._function(*self._arrays)

    def rebind(self, index: int, buffer: Array, /) -> None:
        """Replace argument `index` of coming calls."""
        view = buffer.view()
        if index < self._inputs:
            view.flags.writeable = False
        self._arrays[index] = view


class HostMemory(DeviceMemory):
    """The arrays of one executor by buffer number, `arrays`; kernels run on `threads` threads."""

    device = cpu()

    def __init__(self, threads: int = 1, kernels: Mapping[str, Kernel] | None = None) -> None:
        """`kernels` are the loaded kernels by name, if any.

        Raises: OptionError for an invalid `threads` or `kernels`.
        """
        loaded = {} if kernels is None else kernels
        if not isinstance(loaded, Mapping) or not all(isinstance(each, Kernel) for each in loaded.values()):
            raise OptionError(f"kernels are given by their names, loaded, not as {kernels!r:.80}")
        require_thread_count(threads)
        self._threads = threads
        self._kernels = kernels
        self._workspace_bytes = max((each.artifact.workspace_bytes for each in loaded.values()), default=0)

    def open(self, plan: Plan, constants: Mapping[int, Array], used: Collection[int]) -> None:  # noqa: ARG002
        """Allocate all buffers; the system gives no pages to buffers that only other devices touch."""
        self._claim()
        self._plan = plan
        roots = [number for number, spec in enumerate(plan.buffers) if spec.storage == number]
        # Constants count as borrowed from the start: a written constant gets own memory first.
        self._borrowed = {number for number in roots if plan.buffers[number].kind is BufferKind.CONSTANT}
        self._uses: dict[int, list[tuple[BoundKernel | HostCall, int, int]]] = {number: [] for number in roots}
        """The arguments of calls that are, or view, the memory of a buffer: call, argument, number of the buffer."""
        # zeros are legal indices for a call out of order
        self._arena = aligned_zeros((plan.arena_bytes,), "uint8")
        nbytes = self._workspace_bytes
        self._workspace = aligned_array((nbytes,), "uint8") if nbytes else 0
        """Scratch memory of kernels, which run one after another."""
        owned = {n: constant_array(constants[n]) if n in self._borrowed else self._own_array(n) for n in roots}
        self.arrays = [_view(owned[spec.storage], spec) for spec in plan.buffers]

    def bind(self, artifact: KernelArtifact, buffers: tuple[int, ...]) -> Callable[[], object]:
        """A call of a kernel on buffers. Raises: ArtifactError when it is not for the CPU, or does not fit."""
        name = artifact.name
        if artifact.device is not None:
            raise ArtifactError(f"plan {self._plan.name}: {name} is code for {artifact.target}, not for a CPU")
        if self._kernels is None:
            kernel = load_kernels([artifact])[name]
        elif name in self._kernels:
            kernel = self._kernels[name]
        else:
            raise ArtifactError(missing_kernel(self._plan, name))
        arrays = [self.arrays[number] for number in buffers]
        bound = kernel.bind(arrays if self._kernels is None else [*arrays, self._workspace], self._threads)
        self._note_uses(bound, buffers)
        return bound

    def bind_function(self, function: HostFunction, buffers: tuple[int, ...], inputs: int) -> Callable[[], object]:
        """A call of a Python function on buffers, whose first `inputs` are read."""
        bound = HostCall(function, [self.arrays[number] for number in buffers], inputs)
        self._note_uses(bound, buffers)
        return bound

    def _note_uses(self, bound: BoundKernel | HostCall, buffers: Sequence[int]) -> None:
        for index, number in enumerate(buffers):
            self._uses[self._plan.buffers[number].storage].append((bound, index, number))

    def capture(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """The calls, consecutive kernels as one."""
        steps: list[Callable[[], object]] = []
        # Consecutive kernels become one C loop, without a return to Python between them.
        for compiled, group in groupby(calls, key=lambda call: isinstance(call, BoundKernel)):
            members = list(group)
            kernels = [call for call in members if isinstance(call, BoundKernel)]
            steps += [KernelSequence(kernels)] if compiled else members
        return steps

    def use(self) -> MemoryUse:
        """Bytes by purpose, including callers' arrays and shared constants."""
        sums = dict.fromkeys(BufferKind, 0)
        for number, spec in enumerate(self._plan.buffers):
            if spec.storage == number:
                sums[spec.kind] += spec.nbytes
        caller_bytes = sums[BufferKind.INPUT], sums[BufferKind.OUTPUT], sums[BufferKind.CONSTANT]
        return MemoryUse(*caller_bytes, self._plan.arena_bytes, self._workspace_bytes)

    @property
    def nbytes(self) -> int:
        return self.use().peak

    def read(self, number: int, out: Array) -> None:
        np.copyto(out, self.arrays[number].reshape(out.shape))

    def write(self, number: int, values: Array) -> None:
        self.release_borrow(number)
        np.copyto(self.arrays[number], values.reshape(self.arrays[number].shape))

    def copy_in(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        """Copy an array or a number into a buffer that owns memory, in own memory. Raises: OptionError."""
        fitting = as_array(array, spec, what)
        if spec.storage in self._borrowed:
            self.release_borrow(spec.storage)
        np.copyto(self.arrays[spec.storage], fitting)

    def copy_out(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        """Copy a buffer into an array, also of another library. Raises: OptionError when it does not fit."""
        copy_to(array, _view(self.arrays[spec.storage], spec), spec, what)

    def borrow(self, spec: BufferSpec, array: AnyArray, what: str) -> None:
        """Use the caller's array for a buffer and for all views of it; arrays of other libraries by DLPack.

        Raises: OptionError when it is not aligned, dense, of the buffer's shape and type, writable if needed, or shares
        memory with another buffer of which one is written; when the buffer is only the beginning of another.
        """
        written = self._plan.buffers[spec.storage].kind not in READ_ONLY
        array = shared_array(array, f"{what} {spec.name}")
        check_fit(array, spec, what)
        if not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT:
            raise OptionError(
                f"{what} {spec.name}: an array that is used without a copy must be dense and start at a multiple of "
                f"{ALIGNMENT} bytes; retune.compiler.tvm.graph_executor.empty makes such arrays"
            )
        if written and not array.flags.writeable:
            raise OptionError(f"{what} {spec.name}: the array is read-only, and the network writes to it")
        # `may_share_memory` compares ranges: exact for dense arrays, and cheap.
        self._check_borrow(spec, what, lambda other: np.may_share_memory(array, self.arrays[other]), self._uses)
        self._borrowed.add(spec.storage)
        self._put(spec.storage, array)

    def release_borrow(self, number: int) -> None:
        """Use own memory for a buffer again, newly allocated if it was a caller's array or a constant."""
        if number in self._borrowed:
            self._borrowed.remove(number)
            self._put(number, self._own_array(number))

    def wait(self) -> None:
        """Calls are done when they return."""

    def _put(self, root: int, array: Array) -> None:
        for number, spec in enumerate(self._plan.buffers):
            if spec.storage == root:
                self.arrays[number] = _view(array, spec)
        # Calls hold addresses: every argument that views this memory gets the new one.
        for bound, index, number in self._uses[root]:
            bound.rebind(index, self.arrays[number])

    def _own_array(self, number: int) -> Array:
        spec = self._plan.buffers[number]
        if spec.kind is BufferKind.INTERMEDIATE:
            return self._arena[spec.offset : spec.offset + spec.nbytes].view(spec.dtype)
        return aligned_zeros(spec.shape, spec.dtype)


def missing_kernel(plan: Plan, name: str) -> str:
    return f"plan {plan.name}: no kernel {name!r} is given"


def _view(array: Array, spec: BufferSpec) -> Array:
    if array.dtype != np.dtype(spec.dtype):
        raise ArtifactError(f"buffer {spec.name} is {spec.dtype}, but shares memory of {array.dtype.name}")
    return array.reshape(-1)[: prod(spec.shape)].reshape(spec.shape)  # a view may be the first elements only
