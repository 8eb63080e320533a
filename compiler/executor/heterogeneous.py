"""In: a compiled network with kernels for several devices. Out: its outputs.

Always: everything is allocated and bound when the executor is made; a run is calls and copies in the order of
`retune.compiler.executor.placement`. The executor's own memory is the processor's, where inputs come from and outputs
go to; an input is copied to a device when it was set since the last run, and what is in the caller's arrays on a device
stays there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, cast

import numpy as np

from retune.compiler.errors import ArtifactError, OptionError
from retune.compiler.executor.graph_executor import GraphExecutor, joined, require_network
from retune.compiler.executor.host_call import DeviceCall, HostCall, HostFunction
from retune.compiler.executor.memory import Memory, MemoryUse
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.placement import HOST, Copy, PlacedPlan, Run, placed
from retune.compiler.executor.plan import READ_ONLY, BufferKind, Call, Plan
from retune.compiler.executor.stores import Store
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.device import AnyArray, Device, cpu, device_of, on_gpu
from retune.compiler.runtime.loader import BoundKernel, Kernel


class HeterogeneousExecutor(GraphExecutor):
    """Runs a network on the processor and on further devices, each with a `Store`; the first is device 1 of the plan.

    executor = HeterogeneousExecutor(network, [CudaStore(driver())], threads=2)
    executor.run(image=array)
    scores = executor.get_output(0)

    Wherever an executor takes an array, an array of another library on one of its GPUs will do, by DLPack.
    """

    def __init__(
        self,
        network: CompiledNetwork,
        stores: Sequence[Store],
        threads: int = 1,
        kernels: Mapping[str, Kernel] | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        *,
        replay: bool = False,
    ) -> None:
        """Make room, load all kernels, and copy constants to where they are read, unless another executor has them
        there. `kernels` are those for the processor when they are loaded already. With `replay` the calls between two
        copies are recorded by their device in the first run, and launched as one in those after it.

        Raises: as `GraphExecutor`; ArtifactError when the network names a device that has no store; OptionError when a
        store is that of another executor, or is none; DeviceError.
        """
        require_network(network)
        if not isinstance(stores, Sequence) or not all(hasattr(store, "replayed") for store in stores):
            raise OptionError(f"a list of stores is needed, such as CudaStore, one a device, not {stores!r:.80}")
        self._stores = tuple(stores)
        self._replay = replay
        self._sent: dict[int, list[_Transfer]] = {}
        """The copies of inputs and constants to devices, by buffer."""
        self._fetched: dict[int, _Transfer] = {}
        """The copies of outputs to the processor that end a run."""
        self._away: dict[int, Store] = {}
        """Buffers that are in an array of the caller's on a device, or were copied there, and are not here."""
        super().__init__(network, threads, kernels, functions)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The processor, and the devices of the stores."""
        return (cpu(), *(store.device for store in self._stores))

    def _compute(self) -> None:
        """Take all steps of a run. Raises: DeviceError."""
        super()._compute()
        for root in self._fetched.keys() & self._away.keys():
            self._away[root].wait()  # no copy to the processor has waited for it

    def _read_from(self, number: int, value: AnyArray) -> None:
        """Have an input read from the caller's array from now on: one on a GPU as it lies there, one of the processor
        is copied there in every run. Whatever fills the array must be done when a run begins.

        Raises: OptionError when it does not fit, or lies on a GPU and the input is read elsewhere.
        """
        if on_gpu(value):
            self._reader(number, value).exchange(self.network.plan.buffers[number], value, "input")
            self._stays(number)
            return
        super()._read_from(number, value)
        self._changed(number)
        for transfer in self._sent.get(number, ()):
            transfer.always = True

    def _write_to(self, place: int, value: AnyArray) -> None:
        """Have an output written into the caller's array from now on. To one on the GPU that computes it nothing is
        copied, nor to the processor. Raises: OptionError when it is computed elsewhere.
        """
        spec = self.network.plan.buffers[self.network.plan.outputs[place]]
        root = spec.storage
        store = self._home(root)
        if not on_gpu(value):
            super()._write_to(place, value)
            if store is not None:
                store.own(root)
            if self._away.pop(root, None) is not None:
                self._fetched[root].due = self._fetched[root].always = True
            return
        if store is None or device_of(value) != store.device:
            where = store.device if store is not None else cpu()
            raise OptionError(f"the output {spec.name} is computed on {where}; the array lies on {device_of(value)}")
        store.exchange(spec, value, "the array for the output")
        self._memory.own(root)  # nothing is written any more to what was given before
        if root in self._fetched:  # else the network itself reads it on the processor
            self._fetched[root].due = self._fetched[root].always = False
            self._away[root] = store

    def _fetch(self, place: int, out: AnyArray | None) -> Array:
        """A copy of an output, in `out` when given, which may lie on the GPU that computes it.

        Raises: OptionError or DeviceError when an array on a GPU does not fit, or is on another.
        """
        if out is None or not on_gpu(out):
            return super()._fetch(place, out)
        spec = self.network.plan.buffers[self.network.plan.outputs[place]]
        store = self._home(spec.storage)
        if store is None:
            raise OptionError(f"the output {spec.name} is computed on cpu(0); the array lies on {device_of(out)}")
        store.give(spec, out, "the array for the output")
        return cast("Array", out)

    def value(self, number: int) -> Array:
        """What a buffer of the plan holds where it was written last: a copy of what is on another device.

        Raises: OptionError when there is no such buffer.
        """
        held = super().value(number)
        root = self.network.plan.buffers[number].storage
        store = self._away.get(root) or self._home(root)
        return held if store is None else self._copier.read(store, number)

    def bring(self, index: int) -> None:
        """Copy what a call reads to its device, from where it was written last."""
        super().bring(index)
        for copy in self.placed.needs[index]:
            sent = self._sent.get(copy.storage)
            if sent is None:
                self._copier(copy)
            for transfer in sent or ():
                transfer()

    def alone(self, index: int) -> Callable[[], object]:
        """The call of that number, to be timed: it is done when it returns."""
        call = self._call(index)
        if not isinstance(call, DeviceCall):
            return call

        def done() -> None:
            call()
            call.wait()

        return done

    def calls_on(self, device: int) -> tuple[Callable[[], object], ...]:
        """The calls of a run that a device makes, in order; whoever makes them alone sees to the copies.

        Raises: OptionError when there is no such device.
        """
        if not isinstance(device, int) or not 0 <= device <= len(self._stores):
            raise OptionError(f"there is no device {device!r:.80}; the last is number {len(self._stores)}")
        pairs = zip(self.network.plan.calls, self._calls, strict=True)
        return tuple(bound for call, bound in pairs if call.device == device)

    def memory(self) -> MemoryUse:
        """How many bytes this executor holds, by purpose, and on other devices."""
        return replace(super().memory(), devices=sum(store.nbytes for store in self._stores))

    def _bind(
        self, kernels: Mapping[str, Kernel], functions: Mapping[str, HostFunction]
    ) -> tuple[BoundKernel | HostCall | DeviceCall, ...]:
        plan = self.network.plan
        self._check_calls(plan, functions)
        self.placed: PlacedPlan = placed(plan, {kernel.name: kernel for kernel in self.network.kernels}, functions)
        self._copier = _Copier(plan, self._memory, self._stores)
        for device, store in enumerate(self._stores, 1):
            store.open(plan, self.network.constants, sorted(_used(plan, self.placed, device)))
        for copy in self.placed.constants:
            self._transfer(copy).due = False  # the store has them from the start
        return super()._bind(kernels, functions)

    def _check_calls(self, plan: Plan, functions: Mapping[str, HostFunction]) -> None:
        missing = sorted({call.device for call in plan.calls if not 0 <= call.device <= len(self._stores)})
        if missing:
            numbers = ", ".join(map(str, missing))
            raise ArtifactError(f"network {plan.name}: runs on device {numbers} too, but {len(self._stores)} are given")
        away = [call.kernel for call in plan.calls if call.device and call.kernel in functions]
        if away:
            raise ArtifactError(f"network {plan.name}: {away[0]} is a function of Python, which no device runs")

    def _elsewhere(self, call: Call) -> DeviceCall:
        artifact = next(kernel for kernel in self.network.kernels if kernel.name == call.kernel)
        store = self._stores[call.device - 1]
        return DeviceCall(store.bind(artifact, call.buffers), store.wait)

    def _in_order(self, calls: Sequence[BoundKernel | HostCall | DeviceCall]) -> tuple[Callable[[], object], ...]:
        """The calls of one device that follow each other as one, and the copies between them."""
        found: list[Callable[[], object]] = []
        for device, group in groupby(self.placed.steps, key=_place):
            made = [calls[step.call] if isinstance(step, Run) else self._transfer(step) for step in group]
            if device == HOST:
                found += joined(made)
            elif device is None or not self._replay:
                found += made
            else:
                found.append(self._stores[device - 1].replayed(made))
        return tuple(found)

    def _transfer(self, copy: Copy) -> "_Transfer":
        """The copy as a step of a run; those of inputs, constants and outputs are kept in mind."""
        made = _Transfer(partial(self._copier, copy), copy.target)
        if self.network.plan.buffers[copy.storage].kind in READ_ONLY:
            made.always = False
            self._sent.setdefault(copy.storage, []).append(made)
        elif copy in self.placed.last:
            self._fetched[copy.storage] = made
        return made

    def _home(self, root: int) -> Store | None:
        """Where a buffer is written last; None for the processor."""
        home = self.placed.homes.get(root, HOST)
        return None if home == HOST else self._stores[home - 1]

    def _held(self, number: int) -> Array:
        store = self._away.get(self.network.plan.buffers[number].storage)
        return super()._held(number) if store is None else self._copier.read(store, number)

    def _copy_input(self, place: int, value: Any) -> None:
        if type(value) is np.ndarray or not on_gpu(value):
            super()._copy_input(place, value)
            return
        number = self.network.plan.inputs[place]
        self._reader(number, value).take(self.network.plan.buffers[number], value, "input")
        self._stays(number)

    def _changed(self, number: int) -> None:
        store = self._away.pop(number, None)
        if store is not None:
            store.own(number)
        for transfer in self._sent.get(number, ()):
            transfer.due, transfer.always = True, False
            if self.network.plan.buffers[number].kind is BufferKind.CONSTANT:
                transfer()  # no run does

    def _stays(self, number: int) -> None:
        """An input is on the device that reads it, and not here."""
        (transfer,) = self._sent[number]
        transfer.due = transfer.always = False
        self._away[number] = self._stores[transfer.target - 1]

    def _reader(self, number: int, value: Any) -> Store:
        """The device on which an array lies, and which alone reads the input. Raises: OptionError."""
        plan = self.network.plan
        readers = [self._stores[transfer.target - 1] for transfer in self._sent.get(number, ())]
        name, lies = plan.buffers[number].name, device_of(value)
        if self._is_read_here(number) or len(readers) != 1 or readers[0].device != lies:
            where = [cpu()] * self._is_read_here(number) + [store.device for store in readers]
            told = f"it is read on {' and '.join(map(str, where))}" if where else "nothing reads it"
            raise OptionError(f"the array for the input {name} lies on {lies}, and {told}: give a NumPy array")
        return readers[0]

    def _is_read_here(self, number: int) -> bool:
        plan = self.network.plan
        shown = any(plan.buffers[output].storage == number for output in plan.outputs)
        called = (call.buffers for call in plan.calls if call.device == HOST)
        return shown or any(plan.buffers[each].storage == number for buffers in called for each in buffers)


@dataclass(frozen=True, slots=True)
class _Copier:
    """What copies between devices. It knows nothing of the executor, so that this goes, with its memory, as soon as
    nobody has it.
    """

    plan: Plan
    memory: Memory
    stores: Sequence[Store]

    def __call__(self, copy: Copy) -> None:
        """Make a copy."""
        here = self.memory[copy.storage]
        if copy.source == HOST:
            self.stores[copy.target - 1].write(copy.storage, here)
        elif copy.target == HOST:
            self.stores[copy.source - 1].read(copy.storage, here)
        else:
            self.stores[copy.target - 1].write(copy.storage, self.read(self.stores[copy.source - 1], copy.storage))

    def read(self, store: Store, number: int) -> Array:
        """What a buffer holds on a device."""
        spec, root = self.plan.buffers[number], self.plan.root(number)
        whole = aligned_array(root.shape, root.dtype)
        store.read(spec.storage, whole)
        return whole.reshape(-1)[: math.prod(spec.shape)].reshape(spec.shape)


class _Transfer:
    """A copy between devices as a step of a run: made when it is due, and due again when it is `always` made."""

    __slots__ = ("_copy", "always", "due", "target")

    def __init__(self, copy: Callable[[], None], target: int) -> None:
        self._copy = copy
        self.target = target
        self.due = self.always = True

    def __call__(self) -> None:
        if self.due:
            self._copy()
            self.due = self.always


def _place(step: Run | Copy) -> int | None:
    """The device that makes a call, none for a copy."""
    return step.device if isinstance(step, Run) else None


def _used(plan: Plan, steps: PlacedPlan, device: int) -> set[int]:
    """The numbers of the buffers that own the memory that a device needs."""
    found: set[int] = set()
    for step in (*steps.constants, *steps.steps):
        if isinstance(step, Copy) and device in (step.source, step.target):
            found.add(step.storage)
        elif isinstance(step, Run) and step.device == device:
            found |= {plan.buffers[number].storage for number in plan.calls[step.call].buffers}
    return found
