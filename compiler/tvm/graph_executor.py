"""TVM-compatible `graph_executor`: runs a compiled network from a graph, a library and a device, or from a file.

A `GraphExecutor` does the work. It loads no part of the compiler itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

import numpy as np

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.buffers import empty
from retune.compiler.runtime.device import AnyArray, Device, cpu, cuda, device, devices_in
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.graph_import import COPY, ImportedGraph, import_graph
from retune.compiler.runtime.executor.host_memory import HostFunction
from retune.compiler.runtime.executor.library import Library, load_library_params
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.params import (
    load_param_dict,
    load_param_dict_from_file,
    save_param_dict,
    save_param_dict_to_file,
)
from retune.compiler.runtime.executor.plan import Plan
from retune.compiler.runtime.ffi.host_array import HostArray
from retune.compiler.runtime.ffi.registry import with_lent_arrays
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.runtime.loader import Kernel
from retune.compiler.runtime.timing import BenchmarkResult, TimeEvaluator

if TYPE_CHECKING:
    from retune.compiler.runtime.ffi.bindings import PackedFunc

load_module = Library.load

__all__ = [
    "BenchmarkResult", "Device", "GraphModule", "Library", "cpu", "create", "cuda", "device", "empty", "get_device",
    "load_module", "load_param_dict", "load_param_dict_from_file", "save_param_dict", "save_param_dict_to_file",
]  # fmt: skip


class FunctionModule(Protocol):
    """A module of `retune.compiler.build`; this package does not load the FFI that such a module needs."""

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        """Whether there is a function of that name."""

    def get_function(self, name: str, query_imports: bool = False) -> Callable[..., Any]:
        """The function of that name."""


FunctionTable = Mapping[str, KernelFunction | Kernel | HostFunction] | FunctionModule
"""Functions by name: compiled ones, or Python functions that are given inputs and then outputs, which they fill."""

Devices = Device | Sequence[Device]

_Out = TypeVar("_Out")


def create(graph_json_str: str, libmod: Library | FunctionTable, device: Devices) -> "GraphModule":
    """An executor of a graph. Its functions are looked up in `libmod` by name. Parameters are inputs, which hold those
    of `libmod` where it is a library that has them.

    Raises: ArtifactError when the graph is malformed, reads what was written over, or `libmod` lacks a function;
    OptionError when the devices are not those that it needs, or `libmod` is neither a library nor functions by name;
    DeviceError when a GPU is needed, and there is none or another one.
    """
    graph = import_graph_for(graph_json_str, libmod)
    return GraphModule(create_executor(graph.plan, libmod, device))


def import_graph_for(graph_json_str: str, libmod: Library | FunctionTable) -> ImportedGraph:
    """Read a graph whose functions are in `libmod`. Raises: as `create`."""
    if not isinstance(libmod, Library | Mapping) and not hasattr(libmod, "implements_function"):
        raise OptionError(f"a library, a module, or functions by their names, is needed, not {libmod!r}")
    return import_graph(graph_json_str, libmod.gpu_kernels if isinstance(libmod, Library) else ())


def create_executor(plan: Plan, libmod: Library | FunctionTable, device: Devices) -> GraphExecutor:
    """The executor inside `create`, of the plan of an imported graph. Raises: as `create`."""
    devices, _, _ = get_device(libmod, device)
    on_gpu = libmod.gpu_kernels if isinstance(libmod, Library) else {}
    kernels, functions = _functions(plan, libmod, on_gpu)
    called = {call.kernel for call in plan.calls}
    artifacts = tuple(kernel.artifact for kernel in kernels.values())
    artifacts += tuple(kernel for name, kernel in on_gpu.items() if name in called)
    if isinstance(libmod, Library):
        network = replace(libmod.network, plan=plan, kernels=artifacts, constants={})
        executor = executor_of(network, libmod.threads, devices, kernels, functions)
        load_library_params(libmod, executor)
        return executor
    return executor_of(CompiledNetwork(plan, artifacts, {}), 1, devices, kernels, functions)


def get_device(libmod: object, device: Devices) -> tuple[list[Device], int, list[int]]:
    """The devices as a list, how many of them are remote (none), and the type and number of each, one after the other.

    Raises: OptionError when one is no `Device`.
    """
    del libmod
    devices = devices_in(device)
    return devices, 0, [number for dev in devices for number in (dev.device_type, dev.device_id)]


class GraphModule:
    """A graph that can be run.

    For example:

        module = GraphModule(Library.load("resnet18.so")["default"](cpu(0)))
        module.set_input("image", array)
        module.run()
        scores = module.get_output(0)
    """

    def __init__(self, module: GraphExecutor) -> None:
        """What runs a graph: `module` is what a library makes. Raises: OptionError when it is something else."""
        if not isinstance(module, GraphExecutor):
            raise OptionError(f'an executor is needed, such as library["default"](cpu()) makes, not {module!r:.80}')
        self.module = module
        plan = module.network.plan
        self._dtypes = {plan.buffers[number].name: np.dtype(plan.buffers[number].dtype) for number in plan.inputs}

    def set_input(self, key: Any = None, value: Any = None, **params: Any) -> None:
        """Copy arrays into inputs: one by name or number, others by keyword, also to inputs that are called "key" and
        "value". Lists, and numbers of another type of the same kind, are converted.

        Raises: see `GraphExecutor.set_input`.
        """
        if type(value) is np.ndarray and type(key) is str and not params and value.dtype == self._dtypes.get(key):
            self.module.set_input(key, value)  # what nearly every call is, without the microsecond of the rest
            return
        named = key is None or isinstance(key, str | int)
        if not named:
            params["key"] = key
        if value is not None and (not named or (key is None and self.get_input_index("value") >= 0)):
            params["value"] = value
            value = None
        key = key if named else None
        if isinstance(key, str) and value is not None:
            value = self._convert(key, value)
        self.module.set_input(key, value, **{name: self._convert(name, param) for name, param in params.items()})

    def _convert(self, name: str, value: Any) -> Any:
        return _convert(value, self._dtypes.get(name))

    def set_input_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Read an input from the caller's array. Raises: see `GraphExecutor.set_input_zero_copy`."""
        self.module.set_input_zero_copy(key, value)

    def set_output_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Write an output into the caller's array. Raises: see `GraphExecutor.set_output_zero_copy`."""
        self.module.set_output_zero_copy(key, value)

    def run(self, /, **input_dict: AnyArray) -> None:
        """Set the given inputs and run the graph. Raises: OptionError; what a function of the graph raises."""
        self.module.run(**{name: self._convert(name, array) for name, array in input_dict.items()})

    def get_num_outputs(self) -> int:
        """How many outputs there are."""
        return self.module.get_num_outputs()

    def get_num_inputs(self) -> int:
        """How many inputs there are, parameters included."""
        return self.module.get_num_inputs()

    @overload
    def get_input(self, index: int | str, out: None = None) -> HostArray: ...
    @overload
    def get_input(self, index: int | str, out: _Out) -> _Out: ...
    def get_input(self, index: int | str, out: Any = None) -> Any:
        """A copy of an input, as `get_output` gives it. Raises: OptionError when something does not fit."""
        copy = self.module.get_input(index, out)
        return copy.view(HostArray) if out is None else out

    def get_input_index(self, name: str) -> int:
        """The number of the input `name`, -1 when there is none."""
        return self.module.get_input_index(name)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs by name, without those that were loaded as parameters."""
        return self.module.get_input_info()

    @overload
    def get_output(self, index: int | str, out: None = None) -> HostArray: ...
    @overload
    def get_output(self, index: int | str, out: _Out) -> _Out: ...
    def get_output(self, index: int | str, out: Any = None) -> Any:
        """A copy of an output, in `out` when given; a new array is a NumPy array that also has `.numpy()`.

        Raises: OptionError when something does not fit.
        """
        copy = self.module.get_output(index, out)
        return copy.view(HostArray) if out is None else out

    def debug_get_output(self, node: int | str, out: Array) -> Array:
        """What a node computes: only the debug executor keeps it.

        Raises: NotImplementedError, always.
        """
        raise NotImplementedError(
            "the values inside a graph are kept by retune.compiler.tvm.debug_executor; create it there"
        )

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Load saved parameters. Raises: see `GraphExecutor.load_params`."""
        self.module.load_params(params_bytes)

    def share_params(self, other: "GraphModule", params_bytes: bytes | bytearray) -> None:
        """Use the parameters of another module, without a copy. Raises: see `GraphExecutor.share_params`."""
        if not isinstance(other, GraphModule):
            raise OptionError(f"parameters are shared with another GraphModule, not {other!r}")
        self.module.share_params(other.module, params_bytes)

    def __getitem__(self, key: str) -> Callable[..., Any]:
        """A function of the module inside. Raises: AttributeError when there is none of that name."""
        return self.module[key]

    def benchmark(
        self,
        device: Devices,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float | None = None,
        limit_zero_time_iterations: int = 100,
        end_to_end: bool = False,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
        **kwargs: Array,
    ) -> BenchmarkResult:
        """Seconds of a run: `repeat` means over `number` runs each, or over as many as last `min_repeat_ms`.

        `kwargs` are inputs, set once before; with `end_to_end` they are set, and the outputs copied, in every run.
        Between repeats it sleeps `cooldown_interval_ms` after every `repeats_to_cooldown` of them.
        Raises: OptionError when an argument makes no sense; AttributeError when there is no function `func_name`.
        """
        for listed in get_device(self.module, device)[0]:
            self.module.check_device(listed)
        counts = (number, repeat, 0.0 if min_repeat_ms is None else min_repeat_ms, limit_zero_time_iterations)
        evaluator = TimeEvaluator(*counts, cooldown_interval_ms, repeats_to_cooldown)
        return self.module.benchmark(evaluator, function=func_name, end_to_end=end_to_end, inputs=kwargs)


def _functions(
    plan: Plan, libmod: Library | FunctionTable, on_gpu: Mapping[str, KernelArtifact]
) -> tuple[dict[str, Kernel], dict[str, HostFunction]]:
    """The kernels for the CPU and the Python functions that a graph calls, by name."""
    kernels: dict[str, Kernel] = {}
    functions: dict[str, HostFunction] = {}
    for call in plan.calls:
        name = call.kernel
        function: Any = _copy if name == COPY else _function(libmod, name)
        if name in on_gpu:
            continue
        if isinstance(function, KernelFunction):
            function = function.kernel
        if isinstance(function, Kernel):
            kernels[name] = _fitting(function, name)
        elif callable(function):
            functions[name] = (
                with_lent_arrays(cast("PackedFunc", function)) if hasattr(function, "__chandle__") else function
            )
        else:
            raise ArtifactError(f"graph, node {call.label}: the library has no function {name!r}")
    return kernels, functions


def _function(libmod: Library | FunctionTable, name: str) -> Any:
    """The function `name`, None when there is none."""
    if isinstance(libmod, Library):
        return libmod.kernels.get(name)
    if isinstance(libmod, Mapping):
        return libmod.get(name)
    return libmod.get_function(name, True) if libmod.implements_function(name, True) else None


def _convert(value: Any, wanted: np.dtype[Any] | None) -> Any:
    """Numbers of the CPU in the type of an input, as TVM converts them; float64 becomes float32, but no fraction an
    integer. What is no such array stays as it is.
    """
    foreign = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
    if wanted is None or foreign or isinstance(value, int | float):
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths: the executor names the input
        return value
    return array.astype(wanted) if array.dtype != wanted and np.can_cast(array.dtype, wanted, "same_kind") else value


def _fitting(kernel: Kernel, name: str) -> Kernel:
    artifact: KernelArtifact = kernel.artifact
    if artifact.name != name:
        raise ArtifactError(f"the library calls a kernel {name!r} that was built as {artifact.name!r}")
    return kernel


def _copy(source: Array, destination: Array) -> None:
    np.copyto(destination, source)
