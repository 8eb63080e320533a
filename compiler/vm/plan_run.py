"""In: a compiled network. Out: a call that fills arrays of the caller with its outputs.

Always: constants that other networks of the process have too are in memory once, and memory for what lies between
kernels is shared with other calls of the machine.
"""

import threading
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from retune.compiler.errors import MachineError
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.plan import BufferKind, Plan
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import address, constant_array
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.kernel_run import KernelRun, Operand, Place, Workspace
from retune.compiler.vm.values import described


class ConstantPool:
    """Arrays that kernels read, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...], int], list[weakref.ref[Array]]] = {}
        self._places: weakref.WeakValueDictionary[tuple[str, tuple[int, ...], int], Array]
        self._places = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def interned(self, array: Array) -> Array:
        """An array with the same elements, dense, aligned and not to be written."""
        given = np.ascontiguousarray(array).reshape(array.shape)
        place = (given.dtype.name, given.shape, address(given))
        there = self._places.get(place)
        if there is not None:  # it is alive, so this is its memory
            return there
        words = _words(given)
        key = (given.dtype.name, given.shape, zlib.crc32(words.data))
        with self._lock:
            alive = [one for one in self._known.get(key, ()) if one() is not None]
            for one in alive:
                other = one()
                if other is not None and np.array_equal(_words(other), words):
                    return other
            found = constant_array(given).view()
            self._known[key] = [*alive, weakref.ref(found)]
            self._places[found.dtype.name, found.shape, address(found)] = found
        return found


POOL = ConstantPool()
"""The constants of this process."""


def _words(array: Array) -> Array:
    """The bytes of a dense array, eight at a time where that is possible: there may be many."""
    return array.reshape(-1).view(np.uint64 if array.nbytes % 8 == 0 else np.uint8)


Fact = tuple[str, "np.dtype[Any]", tuple[int, ...]]


def facts_of(plan: Plan, numbers: Sequence[int]) -> list[Fact]:
    """Names, types and shapes of buffers."""
    specs = [plan.buffers[number] for number in numbers]
    return [(spec.name, np.dtype(spec.dtype), spec.shape) for spec in specs]


def check_arrays(facts: Sequence[Fact], arrays: Sequence[Array]) -> None:
    """See that arrays are what they should be. Raises: MachineError."""
    for (name, dtype, shape), array in zip(facts, arrays, strict=True):
        if array.dtype != dtype or array.shape != shape:
            raise MachineError(f"{name} is {dtype.name}{list(shape)}, not {described(array)}")


class PlanRun:
    """The kernels of a network, on arrays of the caller."""

    def __init__(
        self,
        network: CompiledNetwork,
        kernels: Sequence[Kernel],
        threads: int,
        arena: Workspace,
        workspace: Workspace,
    ) -> None:
        """`kernels` are those of the network, loaded."""
        plan = network.plan
        by_name = {kernel.artifact.name: kernel for kernel in kernels}
        self._arena = arena
        self._arena_bytes = plan.arena_bytes
        self._inputs, self._outputs = facts_of(plan, plan.inputs), facts_of(plan, plan.outputs)
        constants = {number: POOL.interned(array) for number, array in network.constants.items()}
        slots = {number: Place(slot) for slot, number in enumerate(plan.inputs)}
        self._copies: list[tuple[int, Array | int]] = []
        owners: dict[int, int] = {}
        for place, number in enumerate(plan.outputs):
            root = plan.buffers[number].storage
            kind = plan.buffers[root].kind
            if kind is BufferKind.CONSTANT:
                self._copies.append((place, constants[root]))
            elif kind is BufferKind.INPUT:
                self._copies.append((place, plan.inputs.index(root)))
            elif root in owners:
                self._copies.append((place, len(plan.inputs) + owners[root]))
            else:
                owners[root] = place
                slots[root] = Place(len(plan.inputs) + place)
        last = len(plan.inputs) + len(plan.outputs)

        def operand(number: int) -> Operand:
            root = plan.buffers[number].storage
            if plan.buffers[root].kind is BufferKind.INTERMEDIATE:
                return Place(last, plan.buffers[root].offset)
            return constants[root] if root in constants else slots[root]

        calls = [(by_name[call.kernel], [operand(number) for number in call.buffers]) for call in plan.calls]
        self._run = KernelRun(calls, threads, workspace) if calls else None

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute. Raises: MachineError when an array is not what the network takes or gives."""
        check_arrays(self._inputs, inputs)
        check_arrays(self._outputs, outputs)
        if self._run is not None:
            self._run([*map(address, inputs), *map(address, outputs), self._arena.address(self._arena_bytes)])
        for place, source in self._copies:
            array = source if not isinstance(source, int) else [*inputs, *outputs][source]
            np.copyto(outputs[place], array.reshape(outputs[place].shape))
