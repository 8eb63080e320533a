"""Graphs that can be run, with the interface of TVM's graph executor; a `GraphExecutor` does the work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retune.compiler.errors import ArtifactError, OptionError
from retune.compiler.executor.executors import executor_of
from retune.compiler.executor.graph_executor import GraphExecutor
from retune.compiler.executor.graph_import import COPY, ImportedGraph, import_graph
from retune.compiler.executor.host_function import HostFunction
from retune.compiler.executor.library import Library
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.plan import Plan
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.device import AnyArray, Device
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.runtime.loader import Kernel
from retune.compiler.runtime.timing import BenchmarkResult

FunctionTable = Mapping[str, KernelFunction | Kernel | HostFunction]
"""Functions by name: compiled ones, or Python functions that are given inputs and then outputs, which they fill."""

Devices = Device | Sequence[Device]


def create(graph_json_str: str, libmod: Library | FunctionTable, device: Devices) -> "GraphModule":
    """An executor of a graph. Its functions are looked up in `libmod` by name; parameters are inputs.

    Raises: ArtifactError when the graph is malformed, reads what was written over, or `libmod` lacks a function;
    OptionError when the devices are not those that it needs, or `libmod` is neither a library nor functions by name;
    DeviceError when a GPU is needed, and there is none or another one.
    """
    graph = import_graph_for(graph_json_str, libmod)
    return GraphModule(create_executor(graph.plan, libmod, device))


def import_graph_for(graph_json_str: str, libmod: Library | FunctionTable) -> ImportedGraph:
    """Read a graph whose functions are in `libmod`. Raises: as `create`."""
    if not isinstance(libmod, Library | Mapping):
        raise OptionError(f"a library, or functions by their names, is needed, not {libmod!r}")
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
        return executor_of(network, libmod.threads, devices, kernels, functions)
    return executor_of(CompiledNetwork(plan, artifacts, {}), 1, devices, kernels, functions)


def get_device(libmod: object, device: Devices) -> tuple[list[Device], int, list[int]]:
    """The devices as a list, how many of them are remote (none), and the type and number of each, one after the other.

    Raises: OptionError when one is no `Device`.
    """
    del libmod
    devices = [device] if isinstance(device, Device) else device
    if not isinstance(devices, (list, tuple)) or not devices or not all(isinstance(each, Device) for each in devices):
        raise OptionError(f"a Device or a list of Devices is needed, such as cpu(0), not {device!r}")
    return list(devices), 0, [number for each in devices for number in (each.device_type, each.device_id)]


class GraphModule:
    """A graph that can be run.

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

    def set_input(self, key: str | int | None = None, value: AnyArray | None = None, /, **params: AnyArray) -> None:
        """Copy arrays into inputs: one by name or number, others by keyword. Raises: see `GraphExecutor.set_input`."""
        self.module.set_input(key, value, **params)

    def set_input_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Read an input from the caller's array. Raises: see `GraphExecutor.set_input_zero_copy`."""
        self.module.set_input_zero_copy(key, value)

    def set_output_zero_copy(self, key: str | int, value: AnyArray) -> None:
        """Write an output into the caller's array. Raises: see `GraphExecutor.set_output_zero_copy`."""
        self.module.set_output_zero_copy(key, value)

    def run(self, /, **input_dict: AnyArray) -> None:
        """Set the given inputs and run the graph. Raises: OptionError; what a function of the graph raises."""
        self.module.run(**input_dict)

    def get_num_outputs(self) -> int:
        """How many outputs there are."""
        return self.module.get_num_outputs()

    def get_num_inputs(self) -> int:
        """How many inputs there are, parameters included."""
        return self.module.get_num_inputs()

    def get_input(self, index: int | str, out: Array | None = None) -> Array:
        """A copy of an input, in `out` when given. Raises: OptionError when something does not fit."""
        return self.module.get_input(index, out)

    def get_input_index(self, name: str) -> int:
        """The number of the input `name`, -1 when there is none."""
        return self.module.get_input_index(name)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs by name, without those that were loaded as parameters."""
        return self.module.get_input_info()

    def get_output(self, index: int | str, out: AnyArray | None = None) -> Array:
        """A copy of an output, in `out` when given. Raises: OptionError when something does not fit."""
        return self.module.get_output(index, out)

    def debug_get_output(self, node: int | str, out: Array) -> Array:
        """What a node computes: only the debug executor keeps it.

        Raises: NotImplementedError, always.
        """
        raise NotImplementedError(
            "the values inside a graph are kept by retune.compiler.debug_executor; create it there"
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
        for each in get_device(self.module, device)[0]:
            self.module.check_device(each)
        return self.module.benchmark(
            function=func_name,
            repeat=repeat,
            number=number,
            min_repeat_ms=0.0 if min_repeat_ms is None else min_repeat_ms,
            limit_zero_time_iterations=limit_zero_time_iterations,
            cooldown_interval_ms=cooldown_interval_ms,
            repeats_to_cooldown=repeats_to_cooldown,
            end_to_end=end_to_end,
            inputs=kwargs,
        )


def _functions(
    plan: Plan, libmod: Library | FunctionTable, on_gpu: Mapping[str, KernelArtifact]
) -> tuple[dict[str, Kernel], dict[str, HostFunction]]:
    """The kernels for the CPU and the Python functions that a graph calls, by name."""
    table: Mapping[str, Any] = libmod.kernels if isinstance(libmod, Library) else libmod
    kernels: dict[str, Kernel] = {}
    functions: dict[str, HostFunction] = {}
    for call in plan.calls:
        name = call.kernel
        found = _copy if name == COPY else table.get(name)
        if name in on_gpu:
            continue
        if isinstance(found, KernelFunction):
            found = found.kernel
        if isinstance(found, Kernel):
            kernels[name] = _fitting(found, name)
        elif callable(found):
            functions[name] = found
        else:
            raise ArtifactError(f"graph, node {call.label}: the library has no function {name!r}")
    return kernels, functions


def _fitting(kernel: Kernel, name: str) -> Kernel:
    artifact: KernelArtifact = kernel.artifact
    if artifact.name != name:
        raise ArtifactError(f"the library calls a kernel {name!r} that was built as {artifact.name!r}")
    return kernel


def _copy(source: Array, destination: Array) -> None:
    np.copyto(destination, source)
