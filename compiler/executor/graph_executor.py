"""An executor of a compiled network.

It allocates and binds everything when it is made; a run is a loop over bound kernels and allocates nothing.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import groupby
from typing import Any, NoReturn

import numpy as np

from retune.compiler.errors import ArtifactError, OptionError
from retune.compiler.executor.claims import Claims
from retune.compiler.executor.given import copied, number_as, parameter_names, place_of
from retune.compiler.executor.host_call import DeviceCall, HostCall, HostFunction
from retune.compiler.executor.memory import Memory, MemoryUse, check_fit
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.params import load_param_dict
from retune.compiler.executor.plan import READ_ONLY, Call
from retune.compiler.runtime.arguments import MOST_THREADS, is_thread_count
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.device import AnyArray, Device, cpu, device_of, on_gpu, same_device
from retune.compiler.runtime.loader import BoundKernel, Kernel, load_kernels
from retune.compiler.runtime.locks import add_lock
from retune.compiler.runtime.processor import check_processor
from retune.compiler.runtime.sequence import KernelSequence
from retune.compiler.runtime.timed_functions import TimedFunctions
from retune.compiler.runtime.timing import BenchmarkResult, TimeEvaluator

_FUNCTIONS = (
    "set_input",
    "set_input_zero_copy",
    "set_output_zero_copy",
    "run",
    "get_output",
    "get_input",
    "get_num_outputs",
    "get_num_inputs",
    "get_input_index",
    "get_input_info",
    "load_params",
    "share_params",
)
"""The functions of an executor as a module."""


@dataclass(frozen=True, slots=True)
class CallTime:
    """Time of one kernel call within a run: `seconds` is the median."""

    kernel: str
    label: str
    seconds: float


class GraphExecutor(TimedFunctions):
    """Runs a compiled network. Threads may share one if each holds a lock of theirs from `set_input` to `get_output`;
    without it the executor raises where a thread would use what another one has set or computed.

    executor = GraphExecutor(CompiledNetwork.load("resnet18.retune"), threads=2)
    executor.run(image=array)
    scores = executor.get_output(0)
    """

    lock: threading.RLock

    def __init__(
        self,
        network: CompiledNetwork,
        threads: int = 1,
        kernels: Mapping[str, Kernel] | None = None,
        functions: Mapping[str, HostFunction] | None = None,
    ) -> None:
        """Load the kernels and allocate all memory.

        `kernels` are those of the network when they are loaded already. `functions` are Python functions that the plan
        calls beside kernels: they get the inputs of a call, read-only, and then the outputs to fill.
        Raises: ArtifactError when the network is inconsistent or made for another machine; OptionError when it is none,
        or `threads` is none that can be started.
        """
        require_network(network)
        if not is_thread_count(threads):
            raise OptionError(f"threads must be a whole number from 1 to {MOST_THREADS}, not {threads!r}")
        for given in (kernels, functions):
            if given is not None and not isinstance(given, Mapping):
                raise OptionError(f"kernels and functions are given by their names, not as {given!r:.80}")
        functions = functions or {}
        network.verify(functions)
        check_machine(network)
        plan = network.plan
        self.network = network
        self.threads = threads
        self._memory = Memory(plan, network.constants)
        here = [kernel for kernel in network.kernels if kernel.device is None]
        self._workspace = max((kernel.workspace_bytes for kernel in here), default=0)
        self._calls = self._bind(load_kernels(here) if kernels is None else kernels, functions)
        self._memory.follow(self._calls)
        self._steps = self._in_order(self._calls)
        self._input_specs = [plan.buffers[number] for number in plan.inputs]
        self._output_specs = [plan.buffers[number] for number in plan.outputs]
        self._index = {spec.name: place for place, spec in enumerate(self._input_specs)}
        self._settable = parameter_names(plan)
        self._loaded: set[str] = set()
        self._lent: dict[int, int] = {}
        """Which output has an array of the caller's, by the buffer that owns its memory."""
        add_lock(self)
        self._claims = Claims(len(plan.outputs))

    def _bind(
        self, kernels: Mapping[str, Kernel], functions: Mapping[str, HostFunction]
    ) -> tuple[BoundKernel | HostCall | DeviceCall, ...]:
        workspace = aligned_array((self._workspace,), "uint8") if self._workspace else 0
        plan = self.network.plan
        known = {number for number, spec in enumerate(plan.buffers) if spec.kind in READ_ONLY}
        bound: list[BoundKernel | HostCall | DeviceCall] = []
        for call in plan.calls:
            arrays = [self._memory[number] for number in call.buffers]
            roots = [plan.buffers[number].storage for number in call.buffers]
            if call.device:
                bound.append(self._elsewhere(call))
            elif call.kernel in kernels:
                bound.append(kernels[call.kernel].bind([*arrays, workspace], self.threads))
            elif call.kernel in functions:  # what nothing has written yet is what the function writes
                bound.append(HostCall(functions[call.kernel], arrays, sum(root in known for root in roots)))
            else:
                raise ArtifactError(self._homeless(call))
            known.update(roots)
        return tuple(bound)

    def _elsewhere(self, call: Call) -> DeviceCall:
        """The call, bound on the device that it runs on."""
        raise ArtifactError(
            f"network {self.network.plan.name} also runs on another device than the processor, in its call of "
            f"{call.kernel}: retune.compiler.executor.executors.executor_of runs it"
        )

    def _homeless(self, call: Call) -> str:
        """Why no kernel was given for a call on the processor."""
        plan = self.network.plan.name
        for kernel in self.network.kernels:
            if kernel.name == call.kernel and kernel.device is not None:
                return f"plan {plan}: {call.kernel} is code for {kernel.target}, not for a processor"
        return f"plan {plan}: no kernel {call.kernel!r} is given"

    def _in_order(self, calls: Sequence[BoundKernel | HostCall | DeviceCall]) -> tuple[Callable[[], object], ...]:
        """What a run does, one after the other."""
        return joined(calls)

    def _changed(self, number: int) -> None:
        """An input or a constant was set: whoever has copies of it brings them up to date."""

    def _held(self, number: int) -> Array:
        """What an input or output holds, in memory of the executor's or a copy of it."""
        return self._memory[number]

    @property
    def devices(self) -> tuple[Device, ...]:
        """What it runs on; the processor comes first."""
        return (cpu(),)

    def check_device(self, where: Device) -> None:
        """See that this runs on a device. Raises: OptionError."""
        if not any(same_device(where, device) for device in self.devices):
            here = " and ".join(map(str, self.devices))
            raise OptionError(f"network {self.network.plan.name} runs on {here}, not on {where}")

    def __reduce__(self) -> NoReturn:
        raise ArtifactError(
            'an executor cannot be copied or pickled: make another one with library["default"](cpu()), or send the '
            "CompiledNetwork, executor.network"
        )

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """The method of that name, as modules of functions give theirs.

        Raises: AttributeError when there is none.
        """
        if not isinstance(name, str) or name not in _FUNCTIONS:
            raise AttributeError(f"a graph executor has no function {name!r}; it has {', '.join(_FUNCTIONS)}")
        method: Callable[..., Any] = getattr(self, name)
        return method

    def set_input(self, key: str | int | None = None, value: AnyArray | None = None, /, **inputs: AnyArray) -> None:
        """Copy `value` into the input `key` (name or index), and every other named array into the input of its name. An
        input without dimensions may be given as a number.

        Raises: OptionError when there is no such input, or an array has another shape or dtype.
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
        self._copy_input(place, value)
        self._claims.note_set(self.network.plan.inputs[place], self._input_specs[place].name)

    def set_input_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Read the input from `value` in coming runs, in place, until it is set again.

        Raises: OptionError when there is no such input, or the array does not fit, see `Memory.exchange`.
        """
        number = self.network.plan.inputs[self._place(key)]
        with self.lock:
            self._read_from(number, value)
            self._claims.note_set(number, self.network.plan.buffers[number].name)

    def _read_from(self, number: int, value: AnyArray) -> None:
        """Have an input read from the caller's array from now on."""
        self._memory.exchange(number, value, "input")

    def set_output_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Write the output into `value` in coming runs, in place.

        Raises: OptionError when there is no such output, it is an input or a constant that is passed through, it shows
        the memory of another output that has an array of the caller's already, or the array does not fit, see
        `Memory.exchange`.
        """
        plan, place = self.network.plan, self._output_place(key)
        root = plan.root(plan.outputs[place])
        if root.kind in READ_ONLY:
            raise OptionError(f"the output {key!r} is {root.name} itself, which the network does not write")
        first = self._lent.get(root.storage, place)
        if first != place:
            same = plan.outputs[first] == plan.outputs[place]
            shown = f"output {first}" if same else self._output_specs[first].name
            raise OptionError(
                f"the array for the output {self._output_specs[place].name}: it shows the memory of {shown}, which is "
                "in an array of the caller already; read it with get_output"
            )
        with self.lock:
            self._write_to(place, value)
            self._lent[root.storage] = place
            self._claims.note_set(plan.outputs[place], self._output_specs[place].name)

    def _write_to(self, place: int, value: AnyArray) -> None:
        """Have an output written into the caller's array from now on."""
        self._memory.exchange(self.network.plan.outputs[place], value, "the array for the output")

    def run(self, /, **inputs: AnyArray) -> None:
        """Set the given inputs and compute all outputs.

        Raises: OptionError as `set_input` does, and when another thread has replaced an input that this one had set.
        """
        with self.lock:
            if inputs:
                self.set_input(**inputs)
            self._claims.take_inputs()
            self._claims.note_run()
            self._compute()

    def _compute(self) -> None:
        """Take all steps of a run."""
        for step in self._steps:
            step()

    def get_output(self, index: int | str, out: AnyArray | None = None) -> Array:
        """A copy of an output, by index or name, in `out` when given.

        Raises: OptionError when there is no such output, `out` has another shape or dtype, or another thread's run has
        replaced what this one had computed.
        """
        place = self._output_place(index)
        with self.lock:
            self._claims.note_read(place)
            return self._fetch(place, out)

    def _fetch(self, place: int, out: AnyArray | None) -> Array:
        """A copy of an output, in `out` when given."""
        spec = self._output_specs[place]
        return copied(self._held(self.network.plan.outputs[place]), spec, out, "the array for the output")

    def get_input(self, index: int | str, out: Array | None = None) -> Array:
        """A copy of what an input holds now, in `out` when given.

        Raises: OptionError when there is no such input, or `out` has another shape or dtype.
        """
        place = self._place(index)
        with self.lock:
            source = self._held(self.network.plan.inputs[place])
            return copied(source, self._input_specs[place], out, "the array for the input")

    def get_num_inputs(self) -> int:
        """How many inputs the network has; constants are not counted."""
        return len(self._input_specs)

    def get_num_outputs(self) -> int:
        """How many outputs the network has."""
        return len(self._output_specs)

    def get_input_index(self, name: str) -> int:
        """The index of the input `name`, -1 when there is none. Raises: OptionError for what is no name."""
        if not isinstance(name, str):
            raise OptionError(f"the name of an input is a text, not {name!r}")
        return self._index.get(name, -1)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs, by name; inputs that were loaded or shared as parameters are left out."""
        specs = [spec for spec in self._input_specs if spec.name not in self._loaded]
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def get_output_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the outputs, by name."""
        specs = self._output_specs
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Copy parameters from what `save_param_dict` wrote into the inputs and constants of their names; a constant is
        given as its kernel reads it, see `graph_of`. Names that the network does not have are skipped.

        Raises: ArtifactError when the bytes are damaged; OptionError when an array has another shape or dtype. Then
        nothing has been changed.
        """
        found = self._known(load_param_dict(params_bytes))
        for number, array in found.items():
            check_fit(array, self.network.plan.buffers[number], "parameter")
        with self.lock:
            for number, array in found.items():
                np.copyto(self._memory.own(number), array)
                self._changed(number)
                self._loaded.add(self.network.plan.buffers[number].name)

    def share_params(self, other: "GraphExecutor", params_bytes: bytes | bytearray) -> None:
        """Read the parameters named in `params_bytes` from the memory of `other`, which may go away then.

        Raises: ArtifactError when the bytes are damaged; OptionError when the other executor has no such parameter, or
        one of another shape or dtype. Then nothing has been changed.
        """
        if not isinstance(other, GraphExecutor):
            raise OptionError(f"parameters are shared with another executor, not {other!r:.80}")
        found = {}
        for number in self._known(load_param_dict(params_bytes)):
            spec = self.network.plan.buffers[number]
            theirs = other._settable.get(spec.name)
            if theirs is None:
                raise OptionError(f"the other executor has no parameter {spec.name} to share")
            found[number] = other._held(theirs)
            check_fit(found[number], spec, "parameter")
        with self.lock:
            for number, array in found.items():
                self._memory.exchange(number, array, "parameter")
                self._changed(number)
                self._loaded.add(self.network.plan.buffers[number].name)

    def _known(self, params: Mapping[str, Array]) -> dict[int, Array]:
        return {self._settable[name]: array for name, array in params.items() if name in self._settable}

    def call(self, index: int) -> None:
        """Make one call of the plan, on what the buffers hold; it is done when this returns.

        Raises: OptionError when there is no such call; what the function called raises.
        """
        with self.lock:
            self.bring(index)
            self.alone(index)()

    def bring(self, index: int) -> None:
        """See that a call that is made out of turn finds what it reads: the processor has all of it already.

        Raises: OptionError when there is no such call.
        """
        self._call(index)

    def alone(self, index: int) -> Callable[[], object]:
        """The call of that number, done when it returns, to be timed: it comes after `bring`. Raises: as `bring`."""
        return self._call(index)

    def _call(self, index: int) -> BoundKernel | HostCall | DeviceCall:
        place = place_of(index, {})
        if not 0 <= place < len(self._calls):
            raise OptionError(f"there is no call {index!r:.80}; the plan has {len(self._calls)}")
        return self._calls[place]

    def value(self, number: int) -> Array:
        """The array of a buffer of the plan, not a copy: another call may write over it.

        Raises: OptionError when there is no such buffer.
        """
        place, count = place_of(number, {}), len(self.network.plan.buffers)
        if not 0 <= place < count:
            raise OptionError(f"there is no buffer {number!r:.80}; the plan has {count}")
        return self._memory[place]

    def memory(self) -> MemoryUse:
        """How many bytes this executor holds, by purpose, and in all."""
        return self._memory.use(self._workspace)

    def benchmark(
        self,
        *,
        function: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float = 0.0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: float = 0.0,
        repeats_to_cooldown: int = 1,
        end_to_end: bool = False,
        inputs: Mapping[str, Array] | None = None,
    ) -> BenchmarkResult:
        """Seconds per run, one entry per repeat.

        Inputs are set once and not timed, unless `end_to_end` asks to copy inputs in and outputs out with every run.
        `function` is what is timed, by the name it has as a function of a module.
        Raises: OptionError when an argument makes no sense, or the function cannot be called without arguments;
        AttributeError when there is no such function.
        """
        if inputs is not None and not (isinstance(inputs, Mapping) and all(isinstance(each, str) for each in inputs)):
            raise OptionError(f"inputs must map names to arrays, not be {inputs!r:.80}")
        given = dict(inputs or {})
        self.set_input(**given)
        counts = (number, repeat, min_repeat_ms, limit_zero_time_iterations)
        evaluator = TimeEvaluator(*counts, cooldown_interval_ms, repeats_to_cooldown)
        if not end_to_end:
            return evaluator(_alone(self[function]))
        outputs = [self.get_output(index) for index in range(self.get_num_outputs())]

        def whole() -> None:
            self.run(**given)
            for index, out in enumerate(outputs):
                self.get_output(index, out)

        return evaluator(whole)

    def profile(self, repeat: int = 10) -> tuple[CallTime, ...]:
        """Time of every kernel call, in running order: the median of `repeat` runs after one that is not timed."""
        if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
            raise OptionError(f"repeat must be a whole number of at least 1, not {repeat!r}")
        samples = np.empty((repeat, len(self._calls)), np.int64)
        with self.lock:
            self.run()
            calls = [self.alone(place) for place in range(len(self._calls))]
            for row in samples:
                for place, call in enumerate(calls):
                    start = time.perf_counter_ns()
                    call()
                    row[place] = time.perf_counter_ns() - start
        medians = np.median(samples, axis=0) / 1e9
        return tuple(
            CallTime(call.kernel, call.label, float(seconds))
            for call, seconds in zip(self.network.plan.calls, medians, strict=True)
        )

    def _place(self, key: str | int) -> int:
        place = place_of(key, self._index)
        if not 0 <= place < len(self._input_specs):
            raise OptionError(f"no input {key!r}; the inputs are {', '.join(self._index)}")
        return place

    def _output_place(self, key: str | int) -> int:
        names = [spec.name for spec in self._output_specs]
        place = place_of(key, {name: names.index(name) for name in names})
        if not 0 <= place < len(names):
            raise OptionError(f"no output {key!r}; the outputs are {', '.join(names)}")
        return place

    def _copy_input(self, place: int, value: Any) -> None:
        spec = self._input_specs[place]
        if type(value) is not np.ndarray and on_gpu(value):
            raise OptionError(f"input {spec.name} lies on {device_of(value)}; copy it to the processor, which reads it")
        try:
            array = number_as(value, spec) if type(value) in (int, float, bool) else np.asarray(value)
        except (ValueError, OverflowError, TypeError, RuntimeError) as error:  # nested lists of different lengths; 300
            # as int8; a tensor of PyTorch that is on a GPU, or wants a gradient
            raise OptionError(f"input {spec.name} is no array: {error}") from None
        check_fit(array, spec, "input")
        number = self.network.plan.inputs[place]
        np.copyto(self._memory.own(number), array)
        self._changed(number)


def _alone(function: Callable[..., Any]) -> Callable[[], Any]:
    """The function, which needs no arguments. Raises: OptionError when it does."""
    try:
        signature(function).bind()
    except TypeError as error:
        raise OptionError(f"{function.__name__} cannot be timed, {error}; time_evaluator passes arguments") from None
    return function


def require_network(network: object) -> None:
    """See that it is a compiled network. Raises: OptionError."""
    if not isinstance(network, CompiledNetwork):
        raise OptionError(f"a CompiledNetwork is needed, not {network!r:.80}; Library.load reads one from a file")


def check_machine(network: CompiledNetwork) -> None:
    """See that this machine's processor can run the network. Raises: ArtifactError."""
    check_processor(f"network {network.plan.name}", network.metadata)


def joined(calls: Sequence[Callable[[], object]]) -> tuple[Callable[[], object], ...]:
    """The calls, kernels of the processor that stand side by side as one."""
    steps: list[Callable[[], object]] = []
    for compiled, group in groupby(calls, key=lambda call: isinstance(call, BoundKernel)):
        members = list(group)
        kernels = [call for call in members if isinstance(call, BoundKernel)]
        steps += [KernelSequence(kernels)] if compiled and len(kernels) > 1 else members
    return tuple(steps)
