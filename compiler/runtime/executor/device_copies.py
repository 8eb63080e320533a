"""The copies between the devices of one executor: which of them a run makes, and where every buffer is up to date.

A buffer is *resident* on a device when its value is in a caller's array there, or was copied there by the caller: no
run copies it to or from the host then. Nothing here refers to the executor, so that it is freed, with its memory, with
its last reference.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.device import Device, cpu, device_of
from retune.compiler.runtime.executor.device_memory import DeviceMemory
from retune.compiler.runtime.executor.host_memory import HostMemory
from retune.compiler.runtime.executor.placement import HOST, Copy, PlacedPlan
from retune.compiler.runtime.executor.plan import READ_ONLY, BufferKind, Plan


class CopyStep:
    """A copy as a step of a run: made if `due`, and due again afterwards if `always`."""

    __slots__ = ("_copy", "always", "due", "target")

    def __init__(self, copy: Callable[[], None], target: int) -> None:
        self._copy = copy
        self.target = target
        self.due = self.always = True

    def __call__(self) -> None:
        if self.due:
            self._copy()
            self.due = self.always


class DeviceCopies:
    """The copies of one executor, whose `memories` are open; the host's is the first."""

    def __init__(self, plan: Plan, placed: PlacedPlan, host: HostMemory, memories: Sequence[DeviceMemory]) -> None:
        self._plan = plan
        self._placed = placed
        self._host = host
        self._memories = tuple(memories)
        self._inbound: dict[int, list[CopyStep]] = {}
        """The copies of inputs and constants to devices, by buffer."""
        self._outbound: dict[int, CopyStep] = {}
        """The final copies of outputs to the host, by buffer."""
        self._resident: dict[int, DeviceMemory] = {}
        self._ends_run = frozenset(placed.last)
        for copy in placed.constants:
            self.step(copy).due = False  # the memories have constants from the start

    def step(self, copy: Copy) -> CopyStep:
        """A copy as a step of a run. An input or a constant is copied if it was set since the last run."""
        made = CopyStep(partial(self._copier, self._plan, self._host, self._memories, copy), copy.target)
        if self._plan.buffers[copy.storage].kind in READ_ONLY:
            made.always = False
            self._inbound.setdefault(copy.storage, []).append(made)
        # Only final copies can be skipped if the caller's array is on the device.
        elif copy in self._ends_run:
            self._outbound[copy.storage] = made
        return made

    @property
    def finish(self) -> "Sequence[Callable[[], object]]":
        """The last step of a run: wait for devices whose outputs no copy fetches."""
        return [partial(_wait_for, self._outbound, self._resident)] if self._outbound else []

    @staticmethod
    def _copier(plan: Plan, host: HostMemory, memories: Sequence[DeviceMemory], copy: Copy) -> None:
        here = host.arrays[copy.storage]
        if copy.source == HOST:
            memories[copy.target].write(copy.storage, here)
        elif copy.target == HOST:
            memories[copy.source].read(copy.storage, here)
        else:
            memories[copy.target].write(copy.storage, _read(plan, memories[copy.source], copy.storage))

    def stage_inputs(self, index: int) -> None:
        """Copy a call's operands to its device, from their latest location."""
        for copy in self._placed.copies_before[index]:
            steps = self._inbound.get(copy.storage)
            if steps is None:
                self._copier(self._plan, self._host, self._memories, copy)
            for step in steps or ():
                step()

    def home(self, root: int) -> DeviceMemory:
        """The memory of the last write of a buffer in a run."""
        return self._memories[self._placed.homes.get(root, HOST)]

    def value(self, number: int) -> Array:
        """The value of an input or an output: the host's array, or a copy of a device's resident value."""
        if self._resident:
            memory = self._resident.get(self._plan.buffers[number].storage)
            if memory is not None:
                return _read(self._plan, memory, number)
        return self._host.arrays[number]

    def last_value(self, number: int) -> Array:
        root = self._plan.buffers[number].storage
        memory = self._resident.get(root) or self.home(root)
        return self._host.arrays[number] if memory is self._host else _read(self._plan, memory, number)

    def mark_written(self, number: int) -> None:
        """The host has a new value of an input or a constant; devices get it on demand."""
        memory = self._resident.pop(number, None)
        if memory is not None:
            memory.release_borrow(number)
        for step in self._inbound.get(number, ()):
            step.due, step.always = True, False
            if self._plan.buffers[number].kind is BufferKind.CONSTANT:
                step()  # no run does it

    def mark_borrowed(self, number: int) -> None:
        """An input is a caller's array on the host, which may change before every run."""
        self.mark_written(number)
        for step in self._inbound.get(number, ()):
            step.always = True

    def mark_resident(self, number: int) -> None:
        """An input is on the only device that reads it, and not on the host."""
        (step,) = self._inbound[number]
        step.due = step.always = False
        self._resident[number] = self._memories[step.target]

    def mark_output_resident(self, root: int) -> None:
        """An output is a caller's array on its device: no run copies it to the host."""
        if root in self._outbound:  # otherwise a call on the host reads it
            self._outbound[root].due = self._outbound[root].always = False
            self._resident[root] = self.home(root)

    def mark_output_on_host(self, root: int) -> None:
        """An output is read on the host."""
        home = self.home(root)
        if home is not self._host:
            home.release_borrow(root)
        if self._resident.pop(root, None) is not None:
            self._outbound[root].due = self._outbound[root].always = True

    def reader(self, number: int, array: object) -> DeviceMemory:
        """The memory of the array's device, if only that device reads the input. Raises: OptionError."""
        devices = [step.target for step in self._inbound.get(number, ())]
        lies = device_of(array)
        if self._is_read_on_host(number) or len(devices) != 1 or self._memories[devices[0]].device != lies:
            readers: list[Device] = [cpu()] * self._is_read_on_host(number)
            readers += [self._memories[each].device for each in devices]
            reads = f"it is read on {' and '.join(map(str, readers))}" if readers else "nothing reads it"
            name = self._plan.buffers[number].name
            raise OptionError(f"the array for the input {name} lies on {lies}, and {reads}: give a NumPy array")
        return self._memories[devices[0]]

    def _is_read_on_host(self, number: int) -> bool:
        plan = self._plan
        is_output = any(plan.buffers[output].storage == number for output in plan.outputs)
        called = (call.buffers for call in plan.calls if call.device == HOST)
        return is_output or any(plan.buffers[each].storage == number for buffers in called for each in buffers)


def _wait_for(outbound: dict[int, CopyStep], resident: dict[int, DeviceMemory]) -> None:
    for root in outbound.keys() & resident.keys():
        resident[root].wait()


def _read(plan: Plan, memory: DeviceMemory, number: int) -> Array:
    spec = plan.buffers[number]
    root = plan.buffers[spec.storage]
    # Memories copy whole buffers, by the number of the buffer that owns the memory.
    whole = aligned_array(root.shape, root.dtype)
    memory.read(spec.storage, whole)
    return whole.reshape(-1)[: math.prod(spec.shape)].reshape(spec.shape)
