"""Our compiler behind ONNX's own interface for runtimes: importer, graph passes, untuned kernels, executor.

A network whose shapes depend on what its inputs hold is compiled when it runs first, with the inputs that decide fixed;
for other values of these it is compiled anew.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.backend.base import Backend, BackendRep

from compiler.driver.compile_network import compile_graph
from compiler.errors import DynamicShapeError, UnknownValueError
from compiler.executor.graph_executor import GraphExecutor
from compiler.frontend.onnx.importer import load_model
from compiler.frontend.onnx.program import load_program
from compiler.graph.ir import Graph
from compiler.graph.pipeline import optimize
from compiler.graph.run_program import run_program
from compiler.target import Target

Array = NDArray[Any]

class CompiledModel(BackendRep):  # type: ignore[misc]
    """A model that takes its inputs as a list, in the model's order, or by name.

    `waits` says that it is compiled when it runs first, `folded` that no input was left then: all was computed at once.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        """Compile `model` if its shapes are known. Raises: ModelError when it cannot be imported."""
        weights = {tensor.name for tensor in model.graph.initializer}
        self._names = [entry.name for entry in model.graph.input if entry.name not in weights]
        self._model = model
        self._executor: GraphExecutor | None = None
        self.folded = False
        try:
            self._executor = _executor(load_model(model))
        except (DynamicShapeError, UnknownValueError):
            self.waits = True
        else:
            self.waits = False

    def run(self, inputs: Sequence[Array] | Mapping[str, Array], **_: Any) -> tuple[Array, ...]:
        """The outputs for arrays of the inputs."""
        pairs = inputs.items() if isinstance(inputs, Mapping) else zip(self._names, inputs, strict=True)
        named = {name: np.asarray(array) for name, array in pairs}
        executor = self._executor or self._specialised(named)
        for name, array in named.items():
            if executor.get_input_index(name) >= 0:
                executor.set_input(name, array)
        executor.run()
        return tuple(executor.get_output(index) for index in range(executor.get_num_outputs()))

    def _specialised(self, named: Mapping[str, Array]) -> GraphExecutor:
        graph = _specialised(self._model, named)
        self.folded = bool(named) and not graph.inputs
        return _executor(graph)


class InterpretedProgram(BackendRep):  # type: ignore[misc]
    """A model as a program that the reference interpreter runs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Import `model`. Raises: ModelError when that cannot be done."""
        self._program = load_program(model)

    def run(self, inputs: Sequence[Array] | Mapping[str, Array], **_: Any) -> tuple[Array, ...]:
        """The outputs for arrays of the inputs."""
        names = [param.name for param in self._program.inputs]
        pairs = inputs.items() if isinstance(inputs, Mapping) else zip(names, inputs, strict=True)
        return run_program(self._program, {name: np.asarray(array) for name, array in pairs})


def _executor(graph: Graph) -> GraphExecutor:
    return GraphExecutor(compile_graph(optimize(graph), Target.host()))


def _specialised(model: onnx.ModelProto, named: Mapping[str, Array]) -> Graph:
    """The graph for inputs of these shapes, those fixed that shapes depend on."""
    fixed: dict[str, Array] = {}
    while True:
        shapes = {name: array.shape for name, array in named.items() if name not in fixed}
        try:
            return load_model(model, shapes=shapes, constants=fixed)
        except UnknownValueError as error:
            if fixed.keys() >= set(error.inputs):
                raise
            fixed |= {name: named[name] for name in error.inputs}


class RetuneBackend(Backend):  # type: ignore[misc]
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
