"""The executor of a compiled network.

It allocates and binds everything when it is made; a run is a loop over bound calls, and copies between devices, and
allocates nothing.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, cast

import numpy as np

from retune.compiler.errors import ArtifactError, OptionError
from retune.compiler.executor.argument_checks import check_fit, copy_to, parameter_names, position_of
from retune.compiler.executor.binding import bind_calls, check_devices, order_steps
from retune.compiler.executor.claims import Claims
from retune.compiler.executor.device_copies import DeviceCopies
from retune.compiler.executor.device_memory import DeviceMemory, MemoryUse
from retune.compiler.executor.host_function import HostFunction
from retune.compiler.executor.host_memory import HostMemory
from retune.compiler.executor.network import CompiledNetwork, check_machine, require_network
from retune.compiler.executor.params import load_param_dict
from retune.compiler.executor.placement import HOST, place_copies
from retune.compiler.executor.plan import READ_ONLY
from retune.compiler.executor.timed_executor import TimedExecutor
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import AnyArray, Device, device_of, on_gpu, same_device
from retune.compiler.runtime.loader import Kernel, load_kernels
from retune.compiler.runtime.locks import add_lock


class GraphExecutor(TimedExecutor):
    """Runs a compiled network on the CPU, and on further devices where its calls name some. Threads may share an
    executor if each holds a common lock from `set_input` to `get_output`; without it the executor raises where a
    thread would use what another one has set or computed.

    executor = GraphExecutor(CompiledNetwork.load("resnet18.retune"), threads=2)
    executor.run(image=array)
    scores = executor.get_output(0)

    An array may be of NumPy or, by DLPack, of another library; one of a network's GPU may lie there.
    """

    lock: threading.RLock

    def __init__(
        self,
        network: CompiledNetwork,
        threads: int = 1,
        kernels: Mapping[str, Kernel] | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        memories: Sequence[DeviceMemory] = (),
    ) -> None:
        """Load the kernels, allocate all memory and bind all calls.

        `kernels` are those of the network for the CPU when they are loaded already. `functions` are Python functions
        that the plan calls beside kernels: they get the inputs of a call, read-only, and then the outputs to fill.
        `memories` are those of the devices 1, 2, ... of the plan, such as `CudaMemory`; constants are copied there.
        Raises: ArtifactError when the network is inconsistent, made for another machine, or names a device without a
        memory; OptionError when it is none, `threads` is none that can be started, or a memory is that of another
        executor; DeviceError.
        """
        require_network(network)
        if not isinstance(memories, Sequence) or not all(hasattr(memory, "capture") for memory in memories):
            raise OptionError(f"a list of memories is needed, such as CudaMemory, one a device, not {memories!r:.80}")
        if functions is not None and not isinstance(functions, Mapping):
            raise OptionError(f"functions are given by their names, not as {functions!r:.80}")
        functions = functions or {}
        # Before any memory is allocated: what the plan says of offsets decides which memory kernels write.
        network.verify(functions)
        check_machine(network)
        check_devices(network.plan, functions, len(memories))
        if kernels is None:
            kernels = load_kernels([kernel for kernel in network.kernels if kernel.device is None])
        plan = network.plan
        self.network = network
        self.threads = threads
        self.placed = place_copies(plan, {kernel.name: kernel for kernel in network.kernels}, functions)
        self._host = HostMemory(threads, kernels)
        self._memories: tuple[DeviceMemory, ...] = (self._host, *memories)
        for device, memory in enumerate(self._memories):
            memory.open(plan, network.constants, self.placed.used(plan, device))
        self._copies = DeviceCopies(plan, self.placed, self._host, self._memories)
        self._calls = bind_calls(network, functions, self._host, self._memories)
        self._steps = order_steps(self.placed, self._calls, self._copies, self._memories)
        self._input_specs = [plan.buffers[number] for number in plan.inputs]
        self._output_specs = [plan.buffers[number] for number in plan.outputs]
        # Names are resolved once; a call by name costs one dictionary lookup.
        self._index = {spec.name: place for place, spec in enumerate(self._input_specs)}
        # Reversed, so that of outputs with one name the first counts.
        self._output_index = {spec.name: place for place, spec in reversed(list(enumerate(self._output_specs)))}
        self._settable = parameter_names(plan)
        self._loaded: set[str] = set()
        self.unset_params: set[str] = set()
        """Inputs that are parameters of a library and have no value yet: a run would compute on zeros."""
        self._lent: dict[int, int] = {}
        """Which output has an array of the caller, by the buffer that owns its memory."""
        self._has_devices = bool(memories)
        add_lock(self)
        self._claims = Claims(len(plan.outputs))

    @property
    def devices(self) -> tuple[Device, ...]:
        """What it runs on: the CPU, then GPUs."""
        return tuple(memory.device for memory in self._memories)

    def check_device(self, where: Device) -> None:
        """Check that this runs on a device. Raises: OptionError."""
        if not any(same_device(where, device) for device in self.devices):
            here = " and ".join(map(str, self.devices))
            raise OptionError(f"network {self.network.plan.name} runs on {here}, not on {where}")

    def __reduce__(self) -> NoReturn:
        raise ArtifactError(
            'an executor cannot be copied or pickled: make another one with library["default"](cpu()), or send the '
            "CompiledNetwork, executor.network"
        )

    def set_input(self, key: str | int | None = None, value: AnyArray | None = None, /, **inputs: AnyArray) -> None:
        """Copy `value` into the input `key` (name or index), and every other named array into the input of its name. An
        input without dimensions may be given as a number; an array on a GPU goes to the input if that GPU alone reads
        it.

        Raises: OptionError when there is no such input, or an array has another shape or dtype or lies elsewhere.
        """
        if key is None and value is not None:
            raise OptionError("no input given for the value: name it, or give its number")
        with self.lock:
            if key is not None:
                if value is None:
                    raise OptionError(f"no value given for the input {key!r}")
                self._set(self._place(key), value)
            for name, array in inputs.items():
                self._set(self._place(name), array)

    def _set(self, place: int, value: AnyArray) -> None:
        spec = self._input_specs[place]
        self.unset_params.discard(spec.name)
        if type(value) is np.ndarray or not on_gpu(value):
            self._host.copy_in(spec, value, "input")
            if self._has_devices:
                self._copies.mark_written(spec.storage)
        else:
            self._copies.reader(spec.storage, value).copy_in(spec, value, "input")
            self._copies.mark_resident(spec.storage)
        self._claims.note_set(spec.storage, spec.name)

    def set_input_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Read the input from `value` in coming runs, in place, until it is set again. An array on a GPU is read there;
        one of the CPU that a GPU reads is copied to it in every run. What fills the array must be done when a run
        begins.

        Raises: OptionError when there is no such input, or the array does not fit, see `HostMemory.borrow`, or lies on
        a GPU and the input is read elsewhere.
        """
        spec = self._input_specs[self._place(key)]
        with self.lock:
            self.unset_params.discard(spec.name)
            if on_gpu(value):
                self._copies.reader(spec.storage, value).borrow(spec, value, "input")
                self._copies.mark_resident(spec.storage)
            else:
                self._host.borrow(spec, value, "input")
                self._copies.mark_borrowed(spec.storage)
            self._claims.note_set(spec.storage, spec.name)

    def set_output_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Write the output into `value` in coming runs, in place. Where it lies on the GPU that computes the output,
        nothing is copied, nor to the CPU.

        Raises: OptionError when there is no such output, it is an input or a constant that is passed through, it shows
        the memory of another output that has an array of the caller already, or the array does not fit, see
        `HostMemory.borrow`, or lies on another GPU.
        """
        plan, place = self.network.plan, self._output_place(key)
        spec = self._output_specs[place]
        root = plan.buffers[spec.storage]
        if root.kind in READ_ONLY:
            raise OptionError(f"the output {key!r} is {root.name} itself, which the network does not write")
        first = self._lent.get(spec.storage, place)
        if first != place:
            same = plan.outputs[first] == plan.outputs[place]
            shown = f"output {first}" if same else self._output_specs[first].name
            raise OptionError(
                f"the array for the output {spec.name}: it shows the memory of {shown}, which is in an array of the "
                "caller already; read it with get_output"
            )
        with self.lock:
            if on_gpu(value):
                self._writer(place, value).borrow(spec, value, "the array for the output")
                self._host.release_borrow(spec.storage)  # nothing writes any more to the array that was given before
                self._copies.mark_output_resident(spec.storage)
            else:
                self._host.borrow(spec, value, "the array for the output")
                self._copies.mark_output_on_host(spec.storage)
            self._lent[spec.storage] = place
            self._claims.note_set(plan.outputs[place], spec.name)

    def _writer(self, place: int, value: AnyArray) -> DeviceMemory:
        """The memory of the GPU that computes an output, on which the array must lie. Raises: OptionError."""
        spec = self._output_specs[place]
        memory = self._copies.home(spec.storage)
        if memory is self._host or device_of(value) != memory.device:
            lies = device_of(value)
            raise OptionError(f"the output {spec.name} is computed on {memory.device}; the array lies on {lies}")
        return memory

    def run(self, /, **inputs: AnyArray) -> None:
        """Set the given inputs and compute all outputs.

        Raises: OptionError as `set_input` does, when another thread has replaced an input that this one had set, and
        when a parameter was never set; DeviceError.
        """
        with self.lock:
            if inputs:
                self.set_input(**inputs)
            if self.unset_params:
                self._refuse_unset()
            self._claims.take_inputs()
            self._claims.note_run()
            # All checks are done when the executor is made, so a run is calls alone.
            for step in self._steps:
                step()

    def get_output(self, index: int | str, out: AnyArray | None = None) -> Array:
        """A copy of an output, by index or name, in `out` when given, which may lie on the GPU that computes it.

        Raises: OptionError when there is no such output, `out` has another shape or dtype or lies elsewhere, or another
        thread's run has replaced what this one had computed; DeviceError.
        """
        place = self._output_place(index)
        spec = self._output_specs[place]
        with self.lock:
            self._claims.note_read(place)
            if out is not None and type(out) is not np.ndarray and on_gpu(out):
                self._writer(place, out).copy_out(spec, out, "the array for the output")
                return cast("Array", out)
            return copy_to(out, self._copies.value(self.network.plan.outputs[place]), spec, "the array for the output")

    def get_input(self, index: int | str, out: Array | None = None) -> Array:
        """A copy of what an input holds now, in `out` when given.

        Raises: OptionError when there is no such input, or `out` has another shape or dtype.
        """
        spec = self._input_specs[self._place(index)]
        with self.lock:
            return copy_to(out, self._copies.value(spec.storage), spec, "the array for the input")

    def get_num_inputs(self) -> int:
        """How many inputs the network has; constants are not counted."""
        return len(self._input_specs)

    def get_num_outputs(self) -> int:
        """How many outputs the network has."""
        return len(self._output_specs)

    def get_input_index(self, name: str) -> int:
        """The index of the input `name`, -1 when there is none. Raises: OptionError for what is no name."""
        if not isinstance(name, str):
            raise OptionError(f"the name of an input is a string, not {name!r}")
        return self._index.get(name, -1)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs, by name; inputs that were loaded or shared as parameters are left out."""
        specs = [spec for spec in self._input_specs if spec.name not in self._loaded]
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def get_output_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the outputs, by name."""
        specs = self._output_specs
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def load_params(self, params_bytes: bytes | bytearray | Mapping[str, Array]) -> None:
        """Copy parameters, arrays by name or what `save_param_dict` wrote, into the inputs and constants of those
        names; a constant is given as its kernel reads it, see `export_graph`. Names that the network does not have are
        skipped.

        Raises: ArtifactError when the bytes are damaged; OptionError when an array has another shape or dtype. Then
        nothing has been changed.
        """
        buffers = self.network.plan.buffers
        found = self._known(params_bytes if isinstance(params_bytes, Mapping) else load_param_dict(params_bytes))
        for number, array in found.items():
            # All are checked before the first is copied: an error leaves the executor as it was.
            check_fit(array, buffers[number], "parameter")
        with self.lock:
            for number, array in found.items():
                self._host.copy_in(buffers[number], array, "parameter")
                self._mark_loaded(number)

    def share_params(self, other: "GraphExecutor", params_bytes: bytes | bytearray) -> None:
        """Read the parameters named in `params_bytes` from the memory of `other`, which may go away then.

        Raises: ArtifactError when the bytes are damaged; OptionError when the other executor has no such parameter, or
        one of another shape or dtype. Then nothing has been changed.
        """
        if not isinstance(other, GraphExecutor):
            raise OptionError(f"parameters are shared with another executor, not {other!r:.80}")
        buffers = self.network.plan.buffers
        found = {}
        for number in self._known(load_param_dict(params_bytes)):
            theirs = other._settable.get(buffers[number].name)
            if theirs is None:
                raise OptionError(f"the other executor has no parameter {buffers[number].name} to share")
            found[number] = other._copies.value(theirs)
            check_fit(found[number], buffers[number], "parameter")
        with self.lock:
            for number, array in found.items():
                # Borrowed: the array keeps its memory alive when the other executor is gone.
                self._host.borrow(buffers[number], array, "parameter")
                self._mark_loaded(number)

    def _mark_loaded(self, number: int) -> None:
        self._copies.mark_written(number)
        name = self.network.plan.buffers[number].name
        self._loaded.add(name)
        self.unset_params.discard(name)

    def _refuse_unset(self) -> NoReturn:
        names = ", ".join(sorted(self.unset_params))
        advice = "use load_params or set_input, or a library that has its parameters"
        raise OptionError(
            f"network {self.network.plan.name}: no value was set for the parameters {names:.200}; {advice}"
        )

    def _known(self, params: Mapping[str, Array]) -> dict[int, Array]:
        return {self._settable[name]: array for name, array in params.items() if name in self._settable}

    def call(self, index: int) -> None:
        """Make one call of the plan, on what the buffers hold; it is done when this returns.

        Raises: OptionError when there is no such call; what the function called raises.
        """
        with self.lock:
            self.stage_inputs(index)
            self.single_call(index)()

    def stage_inputs(self, index: int) -> None:
        """Copy what a call reads to its device, from where it was written last, so that it can be made alone.

        Raises: OptionError when there is no such call, or a parameter was never set.
        """
        if self.unset_params:
            self._refuse_unset()
        self._copies.stage_inputs(self._call_place(index))

    def single_call(self, index: int) -> Callable[[], object]:
        """The call of that number, done when it returns, to be timed after `stage_inputs`. Raises: as that."""
        place = self._call_place(index)
        call, device = self._calls[place], self.network.plan.calls[place].device
        return call if device == HOST else _waiting(call, self._memories[device].wait)

    def calls_on(self, device: int) -> tuple[Callable[[], object], ...]:
        """The calls of a run that a device makes, in order, without the copies that they need.

        Raises: OptionError when there is no such device.
        """
        if not isinstance(device, int) or not 0 <= device < len(self._memories):
            raise OptionError(f"there is no device {device!r:.80}; the last is number {len(self._memories) - 1}")
        pairs = zip(self.network.plan.calls, self._calls, strict=True)
        return tuple(bound for call, bound in pairs if call.device == device)

    def _call_place(self, index: int) -> int:
        place = position_of(index, {})
        if not 0 <= place < len(self._calls):
            raise OptionError(f"there is no call {index!r:.80}; the plan has {len(self._calls)}")
        return place

    def value(self, number: int) -> Array:
        """What a buffer of the plan holds where it was written last: the array itself, which another call may write
        over, or a copy of what is on another device.

        Raises: OptionError when there is no such buffer.
        """
        place, count = position_of(number, {}), len(self.network.plan.buffers)
        if not 0 <= place < count:
            raise OptionError(f"there is no buffer {number!r:.80}; the plan has {count}")
        return self._copies.last_value(place)

    def memory(self) -> MemoryUse:
        """How many bytes this executor holds, by purpose, and on other devices."""
        return replace(self._host.use(), devices=sum(memory.nbytes for memory in self._memories[1:]))

    def _place(self, key: str | int) -> int:
        place = position_of(key, self._index)
        if not 0 <= place < len(self._input_specs):
            raise OptionError(f"no input {key!r}; the inputs are {', '.join(self._index)}")
        return place

    def _output_place(self, key: str | int) -> int:
        place = position_of(key, self._output_index)
        if not 0 <= place < len(self._output_specs):
            names = ", ".join(spec.name for spec in self._output_specs)
            raise OptionError(f"no output {key!r}; the outputs are {names}")
        return place


def _waiting(call: Callable[[], object], wait: Callable[[], None]) -> Callable[[], None]:
    """A call on a device that is done when it returns."""

    def done() -> None:
        call()
        wait()

    return done
