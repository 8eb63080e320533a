"""In: a compiled network and a number of threads. Out: its outputs, and how long it takes.

Always: everything is allocated
and bound when the executor is made; a run is a loop over bound kernels and allocates nothing.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compiler.errors import ArtifactError, OptionError
from compiler.executor.network import CompiledNetwork
from compiler.executor.plan import BufferKind, BufferSpec
from compiler.runtime.arguments import MOST_THREADS, is_thread_count
from compiler.runtime.artifact import Array
from compiler.runtime.buffers import aligned_array, aligned_copy
from compiler.runtime.loader import BoundKernel, host_features, load_kernels
from compiler.runtime.timing import BenchmarkResult, TimeEvaluator


@dataclass(frozen=True, slots=True)
class CallTime:
    """Time of one kernel call within a run: `seconds` is the median."""

    kernel: str
    label: str
    seconds: float


class GraphExecutor:
    """Runs a compiled network. Not for use by several threads at once: make one executor each.

    executor = GraphExecutor(CompiledNetwork.load("resnet18.retune"), threads=2)
    executor.run(image=array)
    scores = executor.get_output(0)
    """

    def __init__(self, network: CompiledNetwork, threads: int = 1) -> None:
        """Load the kernels and allocate all memory.

        Raises: ArtifactError when the network is inconsistent or made for another machine; OptionError when `threads`
        is none that can be started.
        """
        if not is_thread_count(threads):
            raise OptionError(f"threads must be a whole number from 1 to {MOST_THREADS}, not {threads!r}")
        network.verify()
        _check_machine(network)
        self.network = network
        self.threads = threads
        self._arrays = _allocate(network)
        self._calls = self._bind()
        self._inputs = [self._arrays[number] for number in network.plan.inputs]
        self._input_specs = [network.plan.buffers[number] for number in network.plan.inputs]
        self._output_specs = [network.plan.buffers[number] for number in network.plan.outputs]
        self._index = {spec.name: place for place, spec in enumerate(self._input_specs)}

    def _bind(self) -> tuple[BoundKernel, ...]:
        loaded = load_kernels(self.network.kernels)
        room = max((kernel.workspace_bytes for kernel in self.network.kernels), default=0)
        workspace = aligned_array((room,), "uint8") if room else 0
        return tuple(
            loaded[call.kernel].bind([*(self._arrays[number] for number in call.buffers), workspace], self.threads)
            for call in self.network.plan.calls
        )

    def set_input(self, key: str | int | None = None, value: Array | None = None, /, **inputs: Array) -> None:
        """Copy `value` into the input `key` (name or index), and every other named array into the input of its name.

        Raises: OptionError when there is no such input, or an array has another shape or dtype.
        """
        if key is not None:
            if value is None:
                raise OptionError(f"no value given for the input {key!r}")
            self._copy_input(self._place(key), value)
        for name, array in inputs.items():
            self._copy_input(self._place(name), array)

    def run(self, /, **inputs: Array) -> None:
        """Set the given inputs and compute all outputs.

        Raises: OptionError as `set_input` does.
        """
        if inputs:
            self.set_input(**inputs)
        for call in self._calls:
            call()

    def get_output(self, index: int | str, out: Array | None = None) -> Array:
        """A copy of an output, by index or name, in `out` when given.

        Raises: OptionError when there is no such output, or `out` has another shape or dtype.
        """
        place = self._output_place(index)
        spec = self._output_specs[place]
        source = self._arrays[self.network.plan.outputs[place]]
        if out is None:
            return source.copy()
        if not isinstance(out, np.ndarray) or not out.flags.writeable:
            raise OptionError(f"the array for the output {spec.name} must be a NumPy array that can be written to")
        _check(out, spec, "the array for the output")
        np.copyto(out, source)
        return out

    def get_input(self, index: int | str) -> Array:
        """A copy of what an input holds now."""
        return self._inputs[self._place(index)].copy()

    def get_num_inputs(self) -> int:
        """How many inputs the network has; constants are not counted."""
        return len(self._inputs)

    def get_num_outputs(self) -> int:
        """How many outputs the network has."""
        return len(self._output_specs)

    def get_input_index(self, name: str) -> int:
        """The index of the input `name`, -1 when there is none."""
        return self._index.get(name, -1)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs, by name."""
        specs = self._input_specs
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def get_output_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the outputs, by name."""
        specs = self._output_specs
        return {spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}

    def benchmark(
        self,
        *,
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float = 0.0,
        cooldown_interval_ms: float = 0.0,
        repeats_to_cooldown: int = 1,
        end_to_end: bool = False,
        inputs: Mapping[str, Array] | None = None,
    ) -> BenchmarkResult:
        """Seconds per run, one entry per repeat.

        Inputs are set once and not timed, unless `end_to_end` asks to copy inputs in and outputs out with every run.
        Raises: OptionError when an argument makes no sense.
        """
        if inputs is not None and not isinstance(inputs, Mapping):
            raise OptionError(f"inputs must map names to arrays, not be a {type(inputs).__name__}")
        given = dict(inputs or {})
        self.set_input(**given)
        evaluator = TimeEvaluator(
            number=number,
            repeat=repeat,
            min_repeat_ms=min_repeat_ms,
            cooldown_ms=cooldown_interval_ms,
            repeats_to_cooldown=repeats_to_cooldown,
        )
        if not end_to_end:
            return evaluator(self.run)
        outputs = [self.get_output(index) for index in range(self.get_num_outputs())]

        def whole() -> None:
            self.run(**given)
            for index, out in enumerate(outputs):
                self.get_output(index, out)

        return evaluator(whole)

    def profile(self, repeat: int = 10) -> tuple[CallTime, ...]:
        """Time of every kernel call, in running order: the median of `repeat` runs after one that is not timed."""
        if not isinstance(repeat, int) or repeat < 1:
            raise OptionError(f"repeat must be a whole number of at least 1, not {repeat!r}")
        self.run()
        samples = np.empty((repeat, len(self._calls)), np.int64)
        for row in samples:
            for place, call in enumerate(self._calls):
                start = time.perf_counter_ns()
                call()
                row[place] = time.perf_counter_ns() - start
        medians = np.median(samples, axis=0) / 1e9
        return tuple(
            CallTime(call.kernel, call.label, float(seconds))
            for call, seconds in zip(self.network.plan.calls, medians, strict=True)
        )

    def _place(self, key: str | int) -> int:
        place = _number(key, self._index)
        if not 0 <= place < len(self._inputs):
            raise OptionError(f"no input {key!r}; the inputs are {', '.join(self._index)}")
        return place

    def _output_place(self, key: str | int) -> int:
        names = [spec.name for spec in self._output_specs]
        place = _number(key, {name: number for number, name in enumerate(names)})
        if not 0 <= place < len(names):
            raise OptionError(f"no output {key!r}; the outputs are {', '.join(names)}")
        return place

    def _copy_input(self, place: int, value: Array) -> None:
        try:
            array = np.asarray(value)
        except ValueError as error:  # nested lists of different lengths
            raise OptionError(f"input {self._input_specs[place].name} is no array: {error}") from None
        _check(array, self._input_specs[place], "input")
        np.copyto(self._inputs[place], array)


def _number(key: object, names: Mapping[str, int]) -> int:
    """What a name or an index stands for, -1 for nothing."""
    if isinstance(key, str):
        return names.get(key, -1)
    return int(key) if isinstance(key, (int, np.integer)) and not isinstance(key, bool) else -1


def _check_machine(network: CompiledNetwork) -> None:
    """An instruction that the processor lacks would end the process; say it before."""
    missing = sorted(set(network.metadata.get("needs", ())) - host_features())
    if missing:
        made_for = network.metadata.get("cpu", "another processor")
        raise ArtifactError(
            f"network {network.plan.name} was compiled for {made_for}; this machine lacks {', '.join(missing)}"
        )


def _check(array: Array, spec: BufferSpec, what: str) -> None:
    if tuple(array.shape) != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise OptionError(
            f"{what} {spec.name} must be {spec.dtype}{list(spec.shape)}, not {array.dtype.name}{list(array.shape)}"
        )


def _allocate(network: CompiledNetwork) -> tuple[Array, ...]:
    """An array for every buffer of the plan."""
    plan = network.plan
    arena = aligned_array((plan.arena_bytes,), "uint8")
    owned: dict[int, Array] = {}
    for number, spec in enumerate(plan.buffers):
        if spec.storage != number:
            continue
        if spec.kind is BufferKind.CONSTANT:
            owned[number] = aligned_copy(network.constants[number])
        elif spec.kind is BufferKind.INTERMEDIATE:
            owned[number] = arena[spec.offset : spec.offset + spec.nbytes].view(spec.dtype)
        else:
            owned[number] = aligned_array(spec.shape, spec.dtype)
            owned[number][...] = 0
    return tuple(_view(owned[spec.storage], spec) for spec in plan.buffers)


def _view(array: Array, spec: BufferSpec) -> Array:
    if array.dtype != np.dtype(spec.dtype):
        raise ArtifactError(f"buffer {spec.name} is {spec.dtype}, but shares memory of {array.dtype.name}")
    return array.reshape(spec.shape)
