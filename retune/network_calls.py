"""Runs compiled networks on arrays of any library: on executors for known shapes, else on virtual machines."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from retune.compiler.core.dtype import NARROW, NARROW_FLOATS, arithmetic_type, item_bits
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.device import cpu, cuda, on_gpu
from retune.compiler.runtime.executor.executors import gpu_count
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.plan import READ_ONLY, BufferSpec
from retune.compiler.runtime.kernel_row import CoverageReport
from retune.compiler.runtime.timing import TimeEvaluator
from retune.network_report import NetworkReport, timed_rows

if TYPE_CHECKING:
    from retune.compiler.vm.executable import Executable
    from retune.compiler.vm.machine import VirtualMachine

LARGE_BYTES = 1 << 20
"""From this size on an array is used where it lies. Binding the calls of a network to another array takes tens of
microseconds, more than copying a smaller array.
"""


Shapes = Mapping[str, Sequence[int | str]]
"""Shapes of inputs by name."""


class Calls(Protocol):
    """What runs a network."""

    name: str
    input_names: tuple[str, ...]
    inputs: dict[str, str]
    outputs: dict[str, str]
    coverage: str

    def run(self, values: Sequence[object], kind: "Kind") -> list[object]: ...

    def benchmark(self, repeat: int, shapes: Shapes | None) -> float: ...

    def report(self, values: Sequence[object] | None, shapes: Shapes | None) -> NetworkReport: ...


class GraphCalls:
    """Runs a network of known shapes on executors, of which each serves one call at a time."""

    def __init__(self, library: Library) -> None:
        self._library = library
        network = library.network
        plan = network.plan
        self.name = plan.name
        self.coverage = str(CoverageReport.of(network.coverage)) if network.coverage else "no coverage is known"
        self._inputs = [plan.buffers[number] for number in plan.inputs]
        self._outputs = [plan.buffers[number] for number in plan.outputs]
        self.input_names = tuple(spec.name for spec in self._inputs)
        self.inputs = {spec.name: _describe(spec) for spec in self._inputs}
        self.outputs = {spec.name: _describe(spec) for spec in self._outputs}
        roots = [plan.buffers[spec.storage] for spec in self._outputs]
        storages = [spec.storage for spec in self._outputs]
        self._writes_in_place = [
            # Not what shares memory with an input, a constant or another output: writing it would change that too.
            spec.nbytes >= LARGE_BYTES
            and root.kind not in READ_ONLY
            and spec.nbytes == root.nbytes
            and storages.count(spec.storage) == 1
            for spec, root in zip(self._outputs, roots, strict=True)
        ]
        """Whether an output can be written into an array that is made for the caller."""
        # `deque.pop` and `append` are atomic: idle executors need no lock.
        self._idle: deque[GraphExecutor] = deque()
        self._creating = threading.Lock()

    def _take(self) -> GraphExecutor:
        try:
            return self._idle.pop()
        except IndexError:
            return self._create()

    def _create(self) -> GraphExecutor:
        devices = [cuda(number) for number in range(gpu_count(self._library.network))] or [cpu()]
        with self._creating:  # kernels are loaded once
            executor: GraphExecutor = self._library["default"](*devices)
        return executor

    def run(self, values: Sequence[object], kind: "Kind") -> list[object]:
        executor = self._take()
        try:
            for index, (spec, value) in enumerate(zip(self._inputs, values, strict=True)):
                _set_input(executor, index, spec, value)
            arrays: list[Array | None] = []
            for index, spec in enumerate(self._outputs):
                if self._writes_in_place[index]:
                    # A fresh array for the caller, written in place: large outputs are not copied.
                    array = aligned_array(spec.shape, spec.dtype)
                    executor.set_output_zero_copy(index, array)
                    arrays.append(array)
                else:
                    arrays.append(None)
            executor.run()
            return [
                kind.made_of(executor.get_output(index) if array is None else array)
                for index, array in enumerate(arrays)
            ]
        finally:
            self._idle.append(executor)

    def benchmark(self, repeat: int, shapes: Shapes | None) -> float:
        _refuse_shapes(shapes)
        # An executor of its own: that of a call may still write into the array that the call returned.
        return self._create().benchmark(TimeEvaluator(repeat=repeat, min_repeat_ms=1)).median

    def report(self, values: Sequence[object] | None, shapes: Shapes | None) -> NetworkReport:
        _refuse_shapes(shapes)
        executor = self._create()  # as in `benchmark`
        for index, value in enumerate(values or ()):
            executor.set_input(index, _as_numpy(value))
        times = executor.profile()
        latency = executor.benchmark(TimeEvaluator(repeat=10, min_repeat_ms=1)).median
        sums: dict[str, list[float]] = {}
        for time in times:
            sums.setdefault(time.kernel, []).append(time.seconds)
        timed = {kernel: (sum(seconds), len(seconds)) for kernel, seconds in sums.items()}
        rows = timed_rows(self._library.network.coverage, timed)
        return NetworkReport(self.name, executor.threads, latency, self.coverage, rows)


def _refuse_shapes(shapes: Shapes | None) -> None:
    if shapes:
        raise OptionError("the network was compiled for fixed shapes: leave out shapes")


class MachineCalls:
    """Runs a network of dynamic shapes on virtual machines, of which each serves one call at a time."""

    def __init__(self, executable: "Executable") -> None:
        self._executable = executable
        self.name = executable.program.name
        self.input_names = tuple(executable.get_function_params("main"))
        self.inputs = {param.name: str(param).removeprefix(f"{param.name}: ") for param in executable.program.inputs}
        pairs = zip(executable.program.outputs, executable.program.main.results, strict=True)
        self.outputs = {name: str(result).removeprefix(f"{result.name}: ") for name, result in pairs}
        limited = [f"{name} unless {limits}" for name, limits in executable.limits.items()]
        self.coverage = f"compiled for each shape: {', '.join([*executable.per_shape, *limited]) or 'nothing'}"
        self._idle: deque[VirtualMachine] = deque()

    def _take(self) -> "VirtualMachine":
        try:
            return self._idle.pop()
        except IndexError:
            from retune.compiler.vm.machine import VirtualMachine

            return VirtualMachine(self._executable)

    def run(self, values: Sequence[object], kind: "Kind") -> list[object]:
        machine = self._take()
        try:
            outputs = machine.run(*(_map(_as_numpy, value) for value in values))
            several = len(self._executable.program.outputs) != 1
            return [
                _map(lambda array: kind.made_of(np.asarray(array)), value)
                for value in (outputs if several else [outputs])
            ]
        finally:
            self._idle.append(machine)

    def benchmark(self, repeat: int, shapes: Shapes | None) -> float:
        from retune.compiler.vm.machine import VirtualMachine

        machine = VirtualMachine(self._executable)
        values = self._zeros(shapes)
        machine.run(*values)  # what is compiled for a shape is compiled here
        return machine.benchmark(cpu(), *values, repeat=repeat, number=1, min_repeat_ms=1).median

    def report(self, values: Sequence[object] | None, shapes: Shapes | None) -> NetworkReport:
        from retune.compiler.vm.machine import VirtualMachine

        machine = VirtualMachine(self._executable)
        arrays = self._zeros(shapes) if values is None else [_map(_as_numpy, value) for value in values]
        calls = machine.profile(*arrays).calls
        latency = machine.benchmark(cpu(), *arrays, repeat=10, number=1, min_repeat_ms=1).median
        # The operations are those of likely sizes, not of these.
        known = [replace(row, flops=0.0) for row in self._executable.coverage]
        timed = {str(call["Name"]): (float(call["Duration (us)"]) / 1e6, int(call["Count"])) for call in calls}
        return NetworkReport(self.name, machine.threads, latency, self.coverage, timed_rows(known, timed))

    def _zeros(self, shapes: Shapes | None) -> list[Array]:
        """An array for each input, of the given shapes, or in the middle of the ranges. Raises: OptionError."""
        from retune.compiler.core.input_shapes import parse_shapes, shape_texts
        from retune.compiler.graph.sample_shapes import sample_shapes

        samples = sample_shapes(self._executable.program, parse_shapes(shape_texts(shapes)))
        return [np.zeros(shape, dtype) for dtype, shape in samples[len(samples) // 2].values()]


class Kind:
    """The library that arrays belong to, and how to make its arrays from NumPy's."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Array], object] | None) -> None:
        self._make = make

    @classmethod
    def of(cls, value: object) -> "Kind":
        if isinstance(value, np.ndarray):
            return cls(None)
        # By the module's name: a program without PyTorch must not import it to find that out.
        if type(value).__module__.partition(".")[0] == "torch":
            return cls(_to_torch)
        space = getattr(value, "__array_namespace__", None)
        return cls(None if isinstance(value, np.generic) or space is None else space().from_dlpack)

    def made_of(self, array: Array) -> object:
        """The same numbers, in the same memory, as an array of this kind."""
        return array if self._make is None else self._make(array)


def _to_torch(array: Array) -> object:
    import torch

    if array.dtype.name == "bfloat16":  # NumPy's DLPack does not know it
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    if array.dtype.name in NARROW_FLOATS and array.dtype.itemsize * 8 == item_bits(array.dtype.name):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
    if array.dtype.name in NARROW:  # PyTorch has no arithmetic of them
        return torch.from_numpy(array.astype(arithmetic_type(array.dtype.name)))
    return torch.from_numpy(array)


def _as_numpy(value: Any) -> Any:
    """An array of PyTorch as a NumPy array on the same memory, whatever its type; others as they are."""
    if type(value).__module__.partition(".")[0] != "torch" or not hasattr(value, "detach"):
        return value
    import torch

    if value.device.type != "cpu":
        raise OptionError(f"a tensor on {value.device} was given; a network takes those of the CPU: pass tensor.cpu()")
    if value.layout is not torch.strided:
        raise OptionError(f"a tensor with the layout {value.layout} was given: pass tensor.to_dense()")
    # NumPy refuses tensors that record gradients, and conjugates that PyTorch has not carried out yet.
    tensor = value.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    try:
        if tensor.dtype is torch.bfloat16:
            # Through integers of the same size: `Tensor.numpy` knows no bfloat16.
            return tensor.contiguous().view(torch.uint16).numpy().view("bfloat16")
        name = str(tensor.dtype).removeprefix("torch.")
        if name in NARROW_FLOATS:
            return tensor.contiguous().view(torch.uint8).numpy().view(name)
        return tensor.numpy()
    except RuntimeError as error:  # of a subclass, such as a FakeTensor
        raise OptionError(f"a {type(value).__name__} was given, whose memory cannot be read: {error}") from error


def _set_input(executor: GraphExecutor, index: int, spec: BufferSpec, value: object) -> None:
    """Let the executor read an array where it lies, or copy what is not aligned or dense. Raises: OptionError."""
    array = _as_numpy(value)
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__") and not on_gpu(array):
        array = np.from_dlpack(array)
    # Bound only where kernels may read it as it is: dense, and aligned as their vector loads assume.
    is_large = spec.nbytes >= LARGE_BYTES and isinstance(array, np.ndarray)
    if (
        is_large
        and array.shape == spec.shape
        and array.dtype == np.dtype(spec.dtype)
        and array.flags.c_contiguous
        and array.ctypes.data % ALIGNMENT == 0
    ):
        executor.set_input_zero_copy(index, array)
    else:
        executor.set_input(index, array)


def _describe(spec: BufferSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _map(function: Callable[[Any], object], value: object) -> object:
    """The value with `function` applied to its arrays: an array, a list of them, or None for an absent value."""
    if isinstance(value, list | tuple):
        return [function(array) for array in value]
    return None if value is None else function(value)


def arrays_in(values: Sequence[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        elif value is not None:
            yield value
