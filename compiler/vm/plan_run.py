"""Runs a compiled network of known shapes on arrays, and returns its outputs as new arrays.

Constants that other networks of the process have too are in memory once, and memory for what lies between kernels is
shared with other calls of the machine.
"""

import threading
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from retune.compiler.core.dtype import DType
from retune.compiler.core.errors import ArtifactError, MachineError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import address, constant_array
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, Plan
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.kernel_run import KernelRun, Note, Operand, SlotAddress
from retune.compiler.vm.resources import Resources
from retune.compiler.vm.values import describe

Callee = Callable[[Sequence[Array]], Sequence[Array]]
"""Computes new arrays of the arrays that a call of a region passes."""


class ConstantPool:
    """Arrays that kernels read, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...], int], list[weakref.ref[Array]]] = {}
        self._by_address: weakref.WeakValueDictionary[tuple[str, tuple[int, ...], int], Array]
        self._by_address = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def intern(self, array: Array) -> Array:
        """The pool's array with the elements of `array`: dense, aligned and not to be written."""
        dense = np.ascontiguousarray(array).reshape(array.shape)
        known = self._by_address.get((dense.dtype.name, dense.shape, address(dense)))
        if known is not None:  # it is alive, so this is its memory
            return known
        words = _words(dense)
        # Hash consing: the checksum finds candidates, and equality of all bytes decides.
        key = (dense.dtype.name, dense.shape, zlib.crc32(words.data))
        with self._lock:
            alive = [reference for reference in self._known.get(key, ()) if reference() is not None]
            for reference in alive:
                other = reference()
                if other is not None and np.array_equal(_words(other), words):
                    return other
            # A view, so that the weak references end with the pool's users and not with the caller's own array.
            pooled = constant_array(dense).view()
            self._known[key] = [*alive, weakref.ref(pooled)]
            self._by_address[pooled.dtype.name, pooled.shape, address(pooled)] = pooled
        return pooled


POOL = ConstantPool()
"""The constants of this process."""


def _words(array: Array) -> Array:
    """The bytes of a dense array, eight at a time where that is possible: there may be many."""
    return array.reshape(-1).view(np.uint64 if array.nbytes % 8 == 0 else np.uint8)


Fact = tuple[str, DType, tuple[int, ...]]


def facts_of(plan: Plan, numbers: Sequence[int]) -> list[Fact]:
    """Names, types and shapes of buffers."""
    specs = [plan.buffers[number] for number in numbers]
    return [(spec.name, np.dtype(spec.dtype), spec.shape) for spec in specs]


def _nothing() -> None:
    """A reference to no array."""


class Source:
    """An input of a network, and the last array passed for it. The array of a value keeps its type, shape and address:
    the same array fits again without a check.
    """

    __slots__ = ("_dtype", "_name", "_shape", "address", "known")

    def __init__(self, fact: Fact) -> None:
        self._name, self._dtype, self._shape = fact
        self.known: Callable[[], Array | None] = _nothing
        self.address = 0

    def take(self, array: Array) -> None:
        """Make `array` the last array. Raises: MachineError when the network takes another type or shape."""
        if type(array) is not np.ndarray or array.dtype != self._dtype or array.shape != self._shape:
            kind = f"{self._dtype.name}{list(self._shape)}"
            raise MachineError(f"{self._name} is {kind}, not {describe(array)}")
        self.known, self.address = weakref.ref(array), address(array)


class PlanRun:
    """The kernels of a network, on arrays of the caller."""

    def __init__(self, network: CompiledNetwork, kernels: Sequence[Kernel], resources: Resources) -> None:
        """`kernels` are those of the network, loaded.

        Raises: ArtifactError when an output is an intermediate, or a part of a buffer.
        """
        plan = network.plan
        by_name = {kernel.artifact.name: kernel for kernel in kernels}
        self._arena = resources.arena
        self._arena_bytes = plan.arena_bytes
        self._array_of = resources.allocator.array
        self._sources = tuple(enumerate(Source(fact) for fact in facts_of(plan, plan.inputs)))
        outputs = [plan.buffers[number] for number in plan.outputs]
        self._outputs = tuple((spec.shape, np.dtype(spec.dtype), spec.nbytes) for spec in outputs)
        constants = {number: POOL.intern(array) for number, array in network.constants.items()}
        slots = {number: SlotAddress(slot) for slot, number in enumerate(plan.inputs)}
        self._copies: list[tuple[int, Array | int]] = []
        # Two outputs of one buffer: the first is written, the second copied, since callers own each result alone.
        owners: dict[int, int] = {}
        for index, number in enumerate(plan.outputs):
            root = plan.buffers[number].storage
            kind = plan.buffers[root].kind
            if kind is BufferKind.INTERMEDIATE or plan.buffers[number].nbytes != plan.buffers[root].nbytes:
                name = plan.buffers[number].name  # a kernel would write beyond its array, or not into it
                raise ArtifactError(f"network {plan.name}: the output {name} is not a whole buffer of its own")
            if kind is BufferKind.CONSTANT:
                self._copies.append((index, constants[root]))
            elif kind is BufferKind.INPUT:
                self._copies.append((index, plan.inputs.index(root)))
            elif root in owners:
                self._copies.append((index, len(plan.inputs) + owners[root]))
            else:
                owners[root] = index
                slots[root] = SlotAddress(len(plan.inputs) + index)
        last = len(plan.inputs) + len(plan.outputs)

        def operand(number: int) -> Operand:
            root = plan.buffers[number].storage
            if plan.buffers[root].kind is BufferKind.INTERMEDIATE:
                return SlotAddress(last, plan.buffers[root].offset)
            return constants[root] if root in constants else slots[root]

        calls = [(by_name[call.kernel], [operand(number) for number in call.buffers]) for call in plan.calls]
        has_elements = any(nbytes for _, _, nbytes in self._outputs)
        self._run = None
        if calls and has_elements:
            self._run = KernelRun(calls, resources.threads, resources.workspace)

    def __call__(self, inputs: Sequence[Array], note: Note | None = None) -> list[Array]:
        """The outputs, new arrays. With `note` kernels run one by one, and it is told how many seconds each took.

        Raises: MachineError when an array is not what the network takes.
        """
        if len(inputs) != len(self._sources):
            raise MachineError(f"a network of {len(self._sources)} inputs is given {len(inputs)} arrays")
        addresses = []
        for index, source in self._sources:
            array = inputs[index]
            # Identity first: checking type and shape of every input would take longer than a small kernel.
            if array is None or source.known() is not array:
                source.take(array)
            addresses.append(source.address)
        array_of, outputs = self._array_of, []
        for shape, dtype, nbytes in self._outputs:
            array, begin = array_of(shape, dtype, nbytes)
            outputs.append(array)
            addresses.append(begin)
        if self._run is not None:
            # Asked for in every call: another network may have made the shared arena larger, and so have moved it.
            addresses.append(self._arena.address(self._arena_bytes))
            self._run(addresses, note)
        for index, origin in self._copies:
            array = origin if not isinstance(origin, int) else [*inputs, *outputs][origin]
            np.copyto(outputs[index], array.reshape(outputs[index].shape))
        return outputs


class DeviceRun:
    """The kernels of a network, some of which run on a GPU, on arrays of the caller."""

    def __init__(self, network: CompiledNetwork, kernels: Mapping[str, Kernel], resources: Resources) -> None:
        """`kernels` are those for the CPU, loaded. Raises: as `executor_of`."""
        plan = network.plan
        self._sources = tuple(Source(fact) for fact in facts_of(plan, plan.inputs))
        outputs = [plan.buffers[number] for number in plan.outputs]
        self._outputs = tuple((spec.shape, np.dtype(spec.dtype), spec.nbytes) for spec in outputs)
        self._allocator = resources.allocator
        # One array for equal constants of all shapes: their copies on the GPU are shared by address.
        constants = {number: POOL.intern(array) for number, array in network.constants.items()}
        network = replace(network, constants=constants)
        self._executor = executor_of(network, resources.threads, resources.devices, kernels)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, new arrays. Raises: MachineError when an array is not what the network takes; DeviceError."""
        for index, (source, array) in enumerate(zip(self._sources, inputs, strict=True)):
            source.take(array)
            self._executor.set_input(index, array)
        self._executor.run()
        outputs = [self._allocator.array(shape, dtype, nbytes)[0] for shape, dtype, nbytes in self._outputs]
        for index, array in enumerate(outputs):
            self._executor.get_output(index, array)
        return outputs
