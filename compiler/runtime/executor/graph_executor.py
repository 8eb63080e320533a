"""The executor of a compiled network.

It allocates and binds everything at creation; a run is a loop over bound calls and copies between devices, and
allocates nothing.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, cast

import numpy as np

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import AnyArray, Device, device_of, on_gpu, same_device
from retune.compiler.runtime.executor.argument_checks import check_fit, copy_to, parameter_names, position_of
from retune.compiler.runtime.executor.binding import bind_calls, check_devices, order_steps
from retune.compiler.runtime.executor.claims import Claims, add_lock
from retune.compiler.runtime.executor.device_copies import DeviceCopies
from retune.compiler.runtime.executor.device_memory import DeviceMemory, MemoryUse
from retune.compiler.runtime.executor.host_memory import HostFunction, HostMemory
from retune.compiler.runtime.executor.network import CompiledNetwork, check_machine, require_network
from retune.compiler.runtime.executor.params import load_param_dict
from retune.compiler.runtime.executor.placement import HOST, place_copies
from retune.compiler.runtime.executor.plan import READ_ONLY
from retune.compiler.runtime.executor.timed_executor import TimedExecutor
from retune.compiler.runtime.loader import Kernel, load_kernels


class GraphExecutor(TimedExecutor):
    """Runs a compiled network on the CPU, and on further devices that its calls name. Threads may share an executor if
    each holds a common lock from `set_input` to `get_output`; without it the executor raises when a thread would use
    inputs or outputs of another.

    executor = GraphExecutor(CompiledNetwork.load("resnet18.retune"), threads=2)
    executor.run(image=array)
    scores = executor.get_output(0)

    Arrays are NumPy's or, by DLPack, another library's; arrays of a network with a GPU may be on that GPU.
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

        `kernels` are the network's CPU kernels if already loaded. `functions` are Python functions that the plan calls
        besides kernels: they get the inputs of a call, read-only, and then the outputs to fill. `memories` belong to
        the devices 1, 2, ... of the plan, such as `CudaMemory`; constants are copied there.
        Raises: ArtifactError when the network is inconsistent, made for another machine, or names a device without a
        memory; OptionError for an invalid network, number of threads or memory; DeviceError.
        """
        require_network(network)
        if not isinstance(memories, Sequence) or not all(hasattr(memory, "capture") for memory in memories):
            raise OptionError(f"a list of memories is needed, such as CudaMemory, one a device, not {memories!r:.80}")
        if functions is not None and not isinstance(functions, Mapping):
            raise OptionError(f"functions are given by their names, not as {functions!r:.80}")
        functions = functions or {}
        # Before any allocation: the plan's offsets decide which memory kernels write.
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
            memory.open(plan, network.constants, self.placed.used_buffers(plan, device))
        self._copies = DeviceCopies(plan, self.placed, self._host, self._memories)
        self._calls = bind_calls(network, functions, self._host, self._memories)
        self._steps = order_steps(self.placed, self._calls, self._copies, self._memories)
        self._input_specs = [plan.buffers[number] for number in plan.inputs]
        self._output_specs = [plan.buffers[number] for number in plan.outputs]
        # Names are resolved once; a call by name costs one dictionary lookup.
        self._index = {spec.name: index for index, spec in enumerate(self._input_specs)}
        # Reversed, so that the first of equal output names counts.
        self._output_index = {spec.name: index for index, spec in reversed(list(enumerate(self._output_specs)))}
        self._settable = parameter_names(plan)
        self._loaded: set[str] = set()
        self.unset_params: set[str] = set()
        """Inputs that are parameters of a library without a value: a run would compute on zeros."""
        self._lent: dict[int, int] = {}
        """The output with a caller's array, by the buffer that owns its memory."""
        self._has_devices = bool(memories)
        add_lock(self)
        self._claims = Claims(len(plan.outputs))

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices: the CPU, then GPUs."""
        return tuple(memory.device for memory in self._memories)

    def check_device(self, where: Device) -> None:
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
        input without dimensions accepts a number; an array on a GPU is accepted if only that GPU reads the input.

        Raises: OptionError when there is no such input, or an array has another shape or dtype or is elsewhere.
        """
        if key is None and value is not None:
            raise OptionError("no input given for the value: name it, or give its number")
        with self.lock:
            if key is not None:
                if value is None:
                    raise OptionError(f"no value given for the input {key!r}")
                self._set(self._input_index(key), value)
            for name, array in inputs.items():
                self._set(self._input_index(name), array)

    def _set(self, index: int, value: AnyArray) -> None:
        spec = self._input_specs[index]
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
        a CPU array that a GPU reads is copied to it in every run. Writes to the array must be complete when a run
        begins.

        Raises: OptionError when there is no such input, or the array does not fit, see `HostMemory.borrow`, or is on a
        GPU and the input is read elsewhere.
        """
        spec = self._input_specs[self._input_index(key)]
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
        """Write the output into `value` in coming runs, in place. If it is on the GPU that computes the output, nothing
        is copied, not even to the CPU.

        Raises: OptionError when there is no such output, it is a passed-through input or constant, it views the memory
        of another output that already has a caller's array, or the array does not fit, see `HostMemory.borrow`, or is
        on another GPU.
        """
        plan, index = self.network.plan, self._output_index_of(key)
        spec = self._output_specs[index]
        root = plan.buffers[spec.storage]
        if root.kind in READ_ONLY:
            raise OptionError(f"the output {key!r} is {root.name} itself, which the network does not write")
        first = self._lent.get(spec.storage, index)
        if first != index:
            same = plan.outputs[first] == plan.outputs[index]
            shown = f"output {first}" if same else self._output_specs[first].name
            raise OptionError(
                f"the array for the output {spec.name}: it shows the memory of {shown}, which is in an array of the "
                "caller already; read it with get_output"
            )
        with self.lock:
            if on_gpu(value):
                self._writer(index, value).borrow(spec, value, "the array for the output")
                self._host.release_borrow(spec.storage)  # nothing writes to the previous array any more
                self._copies.mark_output_resident(spec.storage)
            else:
                self._host.borrow(spec, value, "the array for the output")
                self._copies.mark_output_on_host(spec.storage)
            self._lent[spec.storage] = index
            self._claims.note_set(plan.outputs[index], spec.name)

    def _writer(self, index: int, value: AnyArray) -> DeviceMemory:
        """The memory of the GPU that computes an output, if the array is on it. Raises: OptionError."""
        spec = self._output_specs[index]
        memory = self._copies.home(spec.storage)
        if memory is self._host or device_of(value) != memory.device:
            lies = device_of(value)
            raise OptionError(f"the output {spec.name} is computed on {memory.device}; the array lies on {lies}")
        return memory

    def run(self, /, **inputs: AnyArray) -> None:
        """Set the given inputs and compute all outputs.

        Raises: OptionError like `set_input`, when another thread has replaced an input of this one, and when a
        parameter was never set; DeviceError.
        """
        with self.lock:
            if inputs:
                self.set_input(**inputs)
            if self.unset_params:
                self._refuse_unset()
            self._claims.take_inputs()
            self._claims.note_run()
            # All checks are done at creation, so a run is calls alone.
            for step in self._steps:
                step()

    def get_output(self, index: int | str, out: AnyArray | None = None) -> Array:
        """A copy of an output, by index or name, in `out` if given, which may be on the GPU that computes it.

        Raises: OptionError when there is no such output, `out` has another shape or dtype or is elsewhere, or another
        thread's run has replaced this thread's output; DeviceError.
        """
        position = self._output_index_of(index)
        spec = self._output_specs[position]
        with self.lock:
            self._claims.note_read(position)
            if out is not None and type(out) is not np.ndarray and on_gpu(out):
                self._writer(position, out).copy_out(spec, out, "the array for the output")
                return cast("Array", out)
            return copy_to(
                out, self._copies.value(self.network.plan.outputs[position]), spec, "the array for the output"
            )

    def get_input(self, index: int | str, out: Array | None = None) -> Array:
        """A copy of the current value of an input, in `out` if given.

        Raises: OptionError when there is no such input, or `out` has another shape or dtype.
        """
        spec = self._input_specs[self._input_index(index)]
        with self.lock:
            return copy_to(out, self._copies.value(spec.storage), spec, "the array for the input")

    def get_num_inputs(self) -> int:
        return len(self._input_specs)

    def get_num_outputs(self) -> int:
        return len(self._output_specs)

    def get_input_index(self, name: str) -> int:
        """The index of the input `name`, -1 if there is none. Raises: OptionError for an invalid name."""
        if not isinstance(name, str):
            raise OptionError(f"the name of an input is a string, not {name!r}")
        return self._index.get(name, -1)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs, by name, without inputs that were loaded or shared as parameters."""
        specs = [spec for spec in self._input_specs if spec.name not in self._loaded]
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def get_output_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        specs = self._output_specs
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def load_params(self, params_bytes: bytes | bytearray | Mapping[str, Array]) -> None:
        """Copy parameters, arrays by name or the bytes of `save_param_dict`, into the inputs and constants of those
        names; constants in their kernel's packing, see `export_graph`. Unknown names are skipped.

        Raises: ArtifactError when the bytes are damaged; OptionError when an array has another shape or dtype. Nothing
        is changed then.
        """
        buffers = self.network.plan.buffers
        arrays = self._by_number(params_bytes if isinstance(params_bytes, Mapping) else load_param_dict(params_bytes))
        for number, array in arrays.items():
            # All are checked before the first is copied: an error leaves the executor unchanged.
            check_fit(array, buffers[number], "parameter")
        with self.lock:
            for number, array in arrays.items():
                self._host.copy_in(buffers[number], array, "parameter")
                self._mark_loaded(number)

    def share_params(self, other: "GraphExecutor", params_bytes: bytes | bytearray) -> None:
        """Read the parameters named in `params_bytes` from the memory of `other`, which may be deleted afterwards.

        Raises: ArtifactError when the bytes are damaged; OptionError when the other executor has no such parameter, or
        one of another shape or dtype. Nothing is changed then.
        """
        if not isinstance(other, GraphExecutor):
            raise OptionError(f"parameters are shared with another executor, not {other!r:.80}")
        buffers = self.network.plan.buffers
        arrays = {}
        for number in self._by_number(load_param_dict(params_bytes)):
            source = other._settable.get(buffers[number].name)
            if source is None:
                raise OptionError(f"the other executor has no parameter {buffers[number].name} to share")
            arrays[number] = other._copies.value(source)
            check_fit(arrays[number], buffers[number], "parameter")
        with self.lock:
            for number, array in arrays.items():
                # Borrowed: the array keeps its memory alive after the other executor is deleted.
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

    def _by_number(self, params: Mapping[str, Array]) -> dict[int, Array]:
        return {self._settable[name]: array for name, array in params.items() if name in self._settable}

    def call(self, index: int) -> None:
        """Make one call of the plan on the current buffers; done on return.

        Raises: OptionError when there is no such call; errors of the called function.
        """
        with self.lock:
            self.stage_inputs(index)
            self.single_call(index)()

    def stage_inputs(self, index: int) -> None:
        """Copy a call's operands to its device, from their latest location, so that it can run alone.

        Raises: OptionError when there is no such call, or a parameter was never set.
        """
        if self.unset_params:
            self._refuse_unset()
        self._copies.stage_inputs(self._call_index(index))

    def single_call(self, index: int) -> Callable[[], object]:
        """Call number `index`, done when it returns, for timing after `stage_inputs`. Raises: like that."""
        position = self._call_index(index)
        call, device = self._calls[position], self.network.plan.calls[position].device
        return call if device == HOST else _waiting(call, self._memories[device].wait)

    def calls_on(self, device: int) -> tuple[Callable[[], object], ...]:
        """The calls of a run on one device, in order, without their copies.

        Raises: OptionError when there is no such device.
        """
        if not isinstance(device, int) or not 0 <= device < len(self._memories):
            raise OptionError(f"there is no device {device!r:.80}; the last is number {len(self._memories) - 1}")
        pairs = zip(self.network.plan.calls, self._calls, strict=True)
        return tuple(bound for call, bound in pairs if call.device == device)

    def _call_index(self, index: int) -> int:
        position = position_of(index, {})
        if not 0 <= position < len(self._calls):
            raise OptionError(f"there is no call {index!r:.80}; the plan has {len(self._calls)}")
        return position

    def value(self, number: int) -> Array:
        """The latest value of a buffer of the plan: the array itself, which another call may overwrite, or a copy from
        another device.

        Raises: OptionError when there is no such buffer.
        """
        position, count = position_of(number, {}), len(self.network.plan.buffers)
        if not 0 <= position < count:
            raise OptionError(f"there is no buffer {number!r:.80}; the plan has {count}")
        return self._copies.last_value(position)

    def memory(self) -> MemoryUse:
        """Bytes of memory of this executor, by purpose, and on other devices."""
        return replace(self._host.use(), devices=sum(memory.nbytes for memory in self._memories[1:]))

    def _input_index(self, key: str | int) -> int:
        index = position_of(key, self._index)
        if not 0 <= index < len(self._input_specs):
            raise OptionError(f"no input {key!r}; the inputs are {', '.join(self._index)}")
        return index

    def _output_index_of(self, key: str | int) -> int:
        index = position_of(key, self._output_index)
        if not 0 <= index < len(self._output_specs):
            names = ", ".join(spec.name for spec in self._output_specs)
            raise OptionError(f"no output {key!r}; the outputs are {names}")
        return index


def _waiting(call: Callable[[], object], wait: Callable[[], None]) -> Callable[[], None]:
    """A device's call that is done when it returns."""

    def done() -> None:
        call()
        wait()

    return done
