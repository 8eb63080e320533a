"""A compiled network that is called like the model it was made from.

Loading and running one imports the runtime alone; the compiler and the virtual machine are imported where needed.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from retune.compiler.core.dtype import NARROW, NARROW_FLOATS, arithmetic_type, item_bits
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.archive import VM_EXECUTABLE, kind_of
from retune.compiler.runtime.arguments import path_of
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.atomic_write import require_writable
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.device import cpu, cuda, on_gpu
from retune.compiler.runtime.executor.executors import gpu_count
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.plan import READ_ONLY, BufferSpec
from retune.compiler.runtime.executor.shared_library import is_shared_library
from retune.compiler.runtime.kernel_row import NUMERIC, CoverageReport, KernelRow, kernel_table
from retune.compiler.runtime.readable import count, html_table, milliseconds
from retune.compiler.runtime.timing import TimeEvaluator

if TYPE_CHECKING:
    from retune.compiler.driver.export import ExportedModel
    from retune.compiler.tune.precision.request import PrecisionChoice
    from retune.compiler.vm.executable import Executable
    from retune.compiler.vm.machine import VirtualMachine
    from retune.flows.cli.kernel_explainer import KernelExplainer

LARGE_BYTES = 1 << 20
"""From this size on an array is used where it lies. Binding the calls of a network to another array takes tens of
microseconds, more than copying a smaller array.
"""


Shapes = Mapping[str, Sequence[int | str]]
"""Shapes of inputs by name."""


class Signature(Protocol):
    """How a model is called: turns its arguments into the inputs of the network, and outputs into its result."""

    def inputs(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The arrays for the inputs of the network, in order."""

    def result(self, outputs: list[object]) -> object:
        """What the model returns, made of the outputs of the network."""


@dataclass(frozen=True, slots=True)
class InputNames:
    """The signature of a network that came from a file: inputs in order or by name; one output, or a tuple of them."""

    names: tuple[str, ...]

    def inputs(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The arrays in the inputs' order. Raises: OptionError when an input is missing, unknown or given twice."""
        given = dict(zip(self.names, args, strict=False))
        if len(args) > len(self.names):
            raise OptionError(
                f"the network has {count(len(self.names), 'input')}, {', '.join(self.names)}: {len(args)} were given"
            )
        for name, value in kwargs.items():
            if name not in self.names:
                raise OptionError(f"the network has no input {name!r}; its inputs are {', '.join(self.names)}")
            if name in given:
                raise OptionError(f"the input {name!r} is given twice: by its place and by its name")
            given[name] = value
        missing = [name for name in self.names if name not in given]
        if missing:
            raise OptionError(f"no value for {', '.join(missing)}; the inputs are {', '.join(self.names)}")
        return [given[name] for name in self.names]

    def result(self, outputs: list[object]) -> object:
        """A single output itself, else a tuple."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """Where the time of a network goes: the median latency of a run, seconds, and its kernels, the slowest first.

    `print(report)` shows a table; a notebook shows it in HTML.
    """

    name: str
    threads: int
    latency: float
    coverage: str
    kernels: tuple[KernelRow, ...]

    _HEADINGS = ("kernel", "uses", "ms", "share", "GFLOP/s", "origin")

    @property
    def title(self) -> str:
        """The network, its threads and its latency, beside the sum of its kernels."""
        apart = milliseconds(sum(row.weighted_seconds for row in self.kernels))
        return (
            f"{self.name}: {milliseconds(self.latency)} ms on {count(self.threads, 'thread')}; "
            f"kernels timed one by one: {apart} ms"
        )

    def __str__(self) -> str:
        rows = [self._HEADINGS, *kernel_table(self.kernels, self._HEADINGS)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        sides = [">" if heading in NUMERIC else "<" for heading in self._HEADINGS]
        lines = ("  ".join(map("{:{}{}}".format, row, sides, widths)).rstrip() for row in rows)
        return "\n".join([self.title, self.coverage, "", *lines])

    def _repr_html_(self) -> str:
        rows = [self._HEADINGS, *kernel_table(self.kernels, self._HEADINGS)]
        return f"{html_table(self.title, rows)}<p>{escape(self.coverage)}</p>"


class Network:
    """A compiled network. `retune.compile`, `retune.tune` and `retune.load` make it.

    fast = retune.compile("resnet18")
    scores = fast(image)

    Arrays may be of NumPy, PyTorch or any library with DLPack; results are of the kind of the first input. An aligned,
    dense input is read where it lies. Threads may call one network at the same time: each call takes an executor of
    its own, which shares kernels and weights with the others.
    """

    def __init__(
        self,
        program: "Library | Executable",
        signature: Signature | None = None,
        explainer: "KernelExplainer | None" = None,
        precision: "PrecisionChoice | None" = None,
    ) -> None:
        self.precision = precision
        """The precision of each layer, and the error of the outputs; None in float32, and for a file."""
        self.explainer = explainer
        """What `retune.explain` asks; None for a network from a file."""
        self._program = program
        self._calls: _Calls = _GraphCalls(program) if isinstance(program, Library) else _MachineCalls(program)
        self._signature = signature or InputNames(self._calls.input_names)

    @property
    def name(self) -> str:
        """What the network is called."""
        return self._calls.name

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs by name, as a type and a shape such as `float32[1, 3, 224, 224]`."""
        return self._calls.inputs

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs by name, as `inputs`; an extent that is not known before a run is `?`."""
        return self._calls.outputs

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the network. Raises: OptionError when an input is missing, or is of another shape or type."""
        values = self._signature.inputs(args, kwargs)
        kind = _Kind.of(next(_arrays(values), None))
        return self._signature.result(self._calls.run(values, kind))

    def save(self, path: str | Path) -> Path:
        """Write the network into one file, NAME.retune or a shared library NAME.so, which `retune.load` reads.

        Raises: ArtifactError for another ending, or when the folder is missing or the file cannot be written.
        """
        path = path_of(path)
        require_writable(path)
        return self._program.export_library(path)

    def export(self, path: str | Path, *, runtime: str = "onnxruntime") -> "ExportedModel":
        """Write the network for another runtime: for ONNX Runtime NAME.onnx, and NAME.so for
        `SessionOptions.register_custom_ops_library`; with `runtime="c"` NAME.so, and NAME.h with its C functions. The
        network there takes and returns the tensors of this network.

        Raises: OptionError for another runtime, or a network that is not compiled for all its shapes as a whole;
        ArtifactError for another ending, a network for a GPU or from a shared library, when there is no linker, or a
        file cannot be written.
        """
        from retune.compiler.driver.export import export_network, exported_files

        path = path_of(path)
        for file in exported_files(path, runtime):
            require_writable(file)
        if isinstance(self._program, Library):
            return export_network(self._program.network, path, runtime)
        from retune.compiler.vm.exported_plan import exported_plan

        return export_network(exported_plan(self._program), path, runtime)

    def benchmark(self, *, repeat: int = 20, shapes: Shapes | None = None) -> float:
        """The median latency of `repeat` runs, in seconds, on zeros. Of a network of dynamic shapes `shapes` are those
        of its inputs by name, by default the middle of its ranges. Raises: OptionError.
        """
        return self._calls.benchmark(repeat, shapes)

    def report(self, *, shapes: Shapes | None = None) -> NetworkReport:
        """Where the time of a run on zeros goes, measured now; `shapes` as for `benchmark`. Raises: OptionError."""
        return self._calls.report(None, shapes)

    def profile(self, *args: object, **kwargs: object) -> NetworkReport:
        """The same for a run on the given inputs."""
        return self._calls.report(self._signature.inputs(args, kwargs), None)

    def __repr__(self) -> str:
        takes = ", ".join(f"{name}: {kind}" for name, kind in self.inputs.items())
        gives = f" -> {', '.join(self.outputs.values())}" if self.outputs else ""
        return f"<retune.Network {self.name}({takes}){gives}>"

    def _repr_html_(self) -> str:
        rows = [("input", *row) for row in self.inputs.items()] + [("output", *row) for row in self.outputs.items()]
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<p><b>{escape(self.name)}</b><br>{escape(self._calls.coverage)}</p><table>{body}</table>"


def load(path: str | Path) -> Network:
    """A network that `Network.save`, `retune tune` or `retune compile` wrote: NAME.retune or NAME.so.

    Raises: ArtifactError when the file is missing, damaged, of another version, or for a CPU with other instructions.
    """
    path = path_of(path)
    if not is_shared_library(path) and kind_of(path) == VM_EXECUTABLE:
        from retune.compiler.vm.executable import Executable

        return Network(Executable.load(path))
    return Network(Library.load(path))


class _Calls(Protocol):
    """What runs a network."""

    name: str
    input_names: tuple[str, ...]
    inputs: dict[str, str]
    outputs: dict[str, str]
    coverage: str

    def run(self, values: Sequence[object], kind: "_Kind") -> list[object]: ...

    def benchmark(self, repeat: int, shapes: Shapes | None) -> float: ...

    def report(self, values: Sequence[object] | None, shapes: Shapes | None) -> NetworkReport: ...


class _GraphCalls:
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

    def run(self, values: Sequence[object], kind: "_Kind") -> list[object]:
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
        rows = _timed_rows(self._library.network.coverage, timed)
        return NetworkReport(self.name, executor.threads, latency, self.coverage, rows)


def _timed_rows(known: Sequence[KernelRow], timed: Mapping[str, tuple[float, int]]) -> tuple[KernelRow, ...]:
    """A row for each kernel, the slowest first, from the seconds of all its calls and their number."""
    rows = {row.name: row for row in known}
    made = (
        replace(rows.get(kernel, KernelRow(kernel)), weight=calls, best_seconds=seconds / calls)
        for kernel, (seconds, calls) in timed.items()
    )
    return tuple(sorted(made, key=lambda row: -row.weighted_seconds))


def _refuse_shapes(shapes: Shapes | None) -> None:
    if shapes:
        raise OptionError("the network was compiled for fixed shapes: leave out shapes")


class _MachineCalls:
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

    def run(self, values: Sequence[object], kind: "_Kind") -> list[object]:
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
        return NetworkReport(self.name, machine.threads, latency, self.coverage, _timed_rows(known, timed))

    def _zeros(self, shapes: Shapes | None) -> list[Array]:
        """An array for each input, of the given shapes, or in the middle of the ranges. Raises: OptionError."""
        from retune.compiler.core.input_shapes import parse_shapes, shape_texts
        from retune.compiler.graph.sample_shapes import sample_shapes

        samples = sample_shapes(self._executable.program, parse_shapes(shape_texts(shapes)))
        return [np.zeros(shape, dtype) for dtype, shape in samples[len(samples) // 2].values()]


class _Kind:
    """The library that arrays belong to, and how to make its arrays from NumPy's."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Array], object] | None) -> None:
        self._make = make

    @classmethod
    def of(cls, value: object) -> "_Kind":
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


def _arrays(values: Sequence[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        elif value is not None:
            yield value
