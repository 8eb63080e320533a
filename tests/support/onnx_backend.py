"""Our compiler behind ONNX's own interface for runtimes: importer, graph passes, default kernels, executor.

A network whose shapes or course are known only when it runs goes to the virtual machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.backend.base import Backend, BackendRep

from retune.compiler.core.errors import DynamicShapeError, UnknownValueError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.dependence import CONTROL_FLOW
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.program import Call, HostCall, Statement
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.vm.compiler import compile as vm_compile
from retune.compiler.vm.machine import VirtualMachine
from retune.compiler.vm.values import ADT
from tests.support.run_program import run_program

Array = NDArray[Any]


class CompiledModel(BackendRep):
    """A model that takes its inputs as a list, in the model's order, or by name.

    One of static shapes without control flow becomes a graph of kernels; any other one, which is `dynamic`, a program
    for the virtual machine. `on_the_host` says that NumPy computes all of it, since every input decides on shapes.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        """Compile `model`. Raises: ModelError when it cannot be imported."""
        weights = {tensor.name for tensor in model.graph.initializer}
        self._names = [entry.name for entry in model.graph.input if entry.name not in weights]
        self._executor = None if _has_control_flow(model) else _static(model)
        self.dynamic = self._executor is None
        self.on_the_host = False
        if self._executor is None:
            program = load_program(model)
            self.on_the_host = all(map(_is_on_the_host, program.main.body))
            self._machine = VirtualMachine(vm_compile(program))

    def run(self, inputs: Sequence[Array] | Mapping[str, Array], **_: Any) -> tuple[Array, ...]:
        """The outputs for arrays of the inputs."""
        pairs = inputs.items() if isinstance(inputs, Mapping) else zip(self._names, inputs, strict=True)
        named = {name: _value(value) for name, value in pairs}
        executor = self._executor
        if executor is None:
            results = self._machine.run(**named)
            return tuple(_value(result) for result in (results if isinstance(results, ADT) else [results]))
        for name, array in named.items():
            if executor.get_input_index(name) >= 0:
                executor.set_input(name, array)
        executor.run()
        return tuple(executor.get_output(index) for index in range(executor.get_num_outputs()))


def _value(value: Any) -> Any:
    """An array, a tuple of arrays, or None for an optional value that is absent."""
    if isinstance(value, list | tuple):
        return tuple(map(np.asarray, value))
    return None if value is None else np.asarray(value)


def _is_on_the_host(statement: Statement) -> bool:
    region = statement.region if isinstance(statement, Call | HostCall) else None
    return region is not None and bool(region.inputs) and set(region.inputs) == set(region.determining)


def _has_control_flow(model: onnx.ModelProto) -> bool:
    return any(node.op_type in CONTROL_FLOW for node in model.graph.node)


def _static(model: onnx.ModelProto) -> GraphExecutor | None:
    """The model as a graph; None when its shapes are known only when it runs."""
    try:
        graph = load_model(model)
    except (DynamicShapeError, UnknownValueError):
        return None
    return GraphExecutor(compile_graph(optimize(graph), Target.host()))


class InterpretedProgram(BackendRep):
    """A model as a program that the reference interpreter runs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Import `model`. Raises: ModelError when that cannot be done."""
        self._program = load_program(model)

    def run(self, inputs: Sequence[Array] | Mapping[str, Array], **_: Any) -> tuple[Array, ...]:
        """The outputs for arrays of the inputs."""
        names = [param.name for param in self._program.inputs]
        pairs = inputs.items() if isinstance(inputs, Mapping) else zip(names, inputs, strict=True)
        return run_program(self._program, {name: _value(value) for name, value in pairs})


class RetuneBackend(Backend):
    """Untuned networks on the CPU of this machine."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> CompiledModel:
        """Compile `model`. Raises: ModelError when it cannot be imported."""
        del device
        return CompiledModel(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is the CPU."""
        return device == "CPU"


CATEGORIES = ("Node", "Simple", "PyTorchConverted", "PyTorchOperator")


FILE = Path(__file__).parents[1] / "backend" / "onnx_nodes.txt"


Outcomes = dict[str, str]


def recorded() -> Outcomes:
    """What comes of each test, by its name."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return {name: outcome for outcome, name in (line.split() for line in lines)}
