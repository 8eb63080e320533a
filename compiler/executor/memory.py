"""The memory of an executor: an array for every buffer of its plan, which may be exchanged for an array of the caller.

Arrays are aligned, of the buffer's shape and type; views follow the buffer that they show; nothing that is written
shares memory with another buffer, except where the plan says so. Constants are those of the network, held once however
many executors read them: only one that parameters are loaded into gets memory of its own for these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from retune.compiler.errors import ArtifactError, OptionError
from retune.compiler.executor.host_call import BoundCall
from retune.compiler.executor.plan import READ_ONLY, BufferKind, BufferSpec, Plan
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import aligned_zeros, constant_array


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of memory that an executor holds while it runs, by purpose; `devices` is memory of other devices."""

    inputs: int
    outputs: int
    constants: int
    arena: int
    workspace: int
    devices: int = 0

    @property
    def peak(self) -> int:
        """All on the processor together; an executor takes everything when it is made, so this is also the least."""
        return self.inputs + self.outputs + self.constants + self.arena + self.workspace


class Memory:
    """The arrays of one executor, by buffer number."""

    def __init__(self, plan: Plan, constants: Mapping[int, Array]) -> None:
        self.plan = plan
        # A call that is made out of turn finds numbers that are legal indices. What nobody touches, since a GPU has it,
        # takes no memory.
        self._arena = aligned_zeros((plan.arena_bytes,), "uint8")
        # which buffers have memory that is not the executor's own
        self._foreign = {at for at, spec in enumerate(plan.buffers) if spec.kind is BufferKind.CONSTANT}
        self._uses: dict[int, list[tuple[BoundCall, int]]] = {}
        owned = {
            number: constant_array(constants[number]) if spec.kind is BufferKind.CONSTANT else self._new(number)
            for number, spec in enumerate(plan.buffers)
            if spec.storage == number
        }
        self.arrays = [_view(owned[spec.storage], spec) for spec in plan.buffers]

    def __getitem__(self, number: int) -> Array:
        return self.arrays[number]

    def use(self, workspace: int) -> MemoryUse:
        """How many bytes there are; arrays of callers count too, and those that others share with this executor."""
        plan = self.plan
        sums = dict.fromkeys(BufferKind, 0)
        for number, spec in enumerate(plan.buffers):
            if spec.storage == number:
                sums[spec.kind] += spec.nbytes
        return MemoryUse(
            sums[BufferKind.INPUT], sums[BufferKind.OUTPUT], sums[BufferKind.CONSTANT], plan.arena_bytes, workspace
        )

    def follow(self, calls: Sequence[BoundCall]) -> None:
        """Have the calls of the plan, in its order, use other arrays when they are exchanged."""
        for bound, call in zip(calls, self.plan.calls, strict=True):
            for place, number in enumerate(call.buffers):
                self._uses.setdefault(number, []).append((bound, place))

    def exchange(self, number: int, array: object, what: str) -> None:
        """Use the caller's array for a buffer and for all views of it; one of another library comes by DLPack.

        Raises: OptionError when it is not aligned, dense, of the buffer's shape and type, writable where that is
        needed, or shares memory with another buffer of which one is written; when the buffer is only the beginning of
        another one.
        """
        spec = self.plan.buffers[number]
        root = spec.storage
        written = self.plan.root(number).kind not in READ_ONLY
        array = shared_array(array, f"{what} {spec.name}")
        check_fit(array, spec, what)
        if not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT:
            raise OptionError(
                f"{what} {spec.name}: an array that is used without a copy must be dense and start at a multiple of "
                f"{ALIGNMENT} bytes; retune.compiler.graph_executor.empty makes such arrays"
            )
        if written and not array.flags.writeable:
            raise OptionError(f"{what} {spec.name}: the array is read-only, and the network writes to it")
        if spec.nbytes != self.plan.root(number).nbytes:
            raise OptionError(
                f"{what} {spec.name}: it is the beginning of {self.plan.root(number).name}, and goes nowhere else"
            )
        for other in self._others(root):
            both_read = not written and self.plan.buffers[other].kind in READ_ONLY
            if not both_read and np.may_share_memory(array, self.arrays[other]):
                raise OptionError(
                    f"{what} {spec.name}: the array shares memory with {self.plan.buffers[other].name}, and one of "
                    "them is written"
                )
        self._foreign.add(root)
        self._put(root, array)

    def own(self, number: int) -> Array:
        """The array of a buffer to write into: memory of the executor's own, new where it used another's."""
        root = self.plan.buffers[number].storage
        if root in self._foreign:
            self._foreign.remove(root)
            self._put(root, self._new(root))
        return self.arrays[number]

    def _others(self, root: int) -> Iterator[int]:
        return (number for number, spec in enumerate(self.plan.buffers) if number == spec.storage != root)

    def _put(self, root: int, array: Array) -> None:
        for number, spec in enumerate(self.plan.buffers):
            if spec.storage == root:
                self.arrays[number] = _view(array, spec)
                for bound, place in self._uses.get(number, ()):
                    bound.rebind(place, self.arrays[number])

    def _new(self, number: int) -> Array:
        spec = self.plan.buffers[number]
        if spec.kind is BufferKind.INTERMEDIATE:
            return self._arena[spec.offset : spec.offset + spec.nbytes].view(spec.dtype)
        return aligned_zeros(spec.shape, spec.dtype)


def shared_array(array: Any, what: str) -> Array:
    """An array of any library in this processor's memory as NumPy's, by DLPack, without a copy. Raises: OptionError."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "__dlpack__"):
        raise OptionError(f"{what}: an array is needed, of NumPy or with DLPack, not a {type(array).__name__}")
    try:
        shared: Array = np.from_dlpack(array)
    except Exception as error:  # of another library, which may raise anything
        raise OptionError(f"{what}: this {type(array).__name__} cannot be used without a copy: {error}") from None
    return shared


def check_fit(array: Array, spec: BufferSpec, what: str) -> None:
    """See that an array has the shape and type of a buffer.

    Raises: OptionError.
    """
    if tuple(array.shape) != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise OptionError(
            f"{what} {spec.name} must be {spec.dtype}{list(spec.shape)}, not {array.dtype.name}{list(array.shape)}"
        )


def _view(array: Array, spec: BufferSpec) -> Array:
    if array.dtype != np.dtype(spec.dtype):
        raise ArtifactError(f"buffer {spec.name} is {spec.dtype}, but shares memory of {array.dtype.name}")
    return array.reshape(-1)[: prod(spec.shape)].reshape(spec.shape)  # a view may show the first elements alone
