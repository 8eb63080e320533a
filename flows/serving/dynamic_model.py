"""A network of dynamic shapes as a model that is served, on kernels for all shapes: nothing is compiled."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from retune.compiler.core.errors import MachineError, OptionError, ShapeMismatchError
from retune.compiler.graph.region import Param, bind
from retune.compiler.runtime.archive import VM_EXECUTABLE, kind_of
from retune.compiler.runtime.artifact import Array
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.machine import VirtualMachine
from retune.compiler.vm.resources import NEEDED, NEVER, VMOptions
from retune.flows.serving.model import ANY, Model, TensorSpec

_log = logging.getLogger(__name__)


class DynamicModel(Model):
    """A network whose shapes change from request to request. Only parts without kernels for all shapes are compiled,
    when a shape is first seen; a warning names them.
    """

    def __init__(self, executable: Executable, instances: int | None = None) -> None:
        program = self._program = executable.program
        parts = executable.per_shape
        for name, reason in parts.items():
            _log.warning("%s: %s is compiled for each new shape, 0.5 to 2 s: %s", program.name, name, reason)
        for name, limits in executable.limits.items():
            _log.warning("%s: %s is compiled for each new shape unless %s", program.name, name, limits)
        self.instances = instances or 1
        options = VMOptions(specialize=NEEDED if parts or executable.limits else NEVER)
        self._machines: SimpleQueue[VirtualMachine] = SimpleQueue()
        for _ in range(self.instances):
            self._machines.put(VirtualMachine(executable, options=options))
        self.inputs = tuple(_spec(param.name, param, program.ranges) for param in program.inputs)
        pairs = zip(program.outputs, program.main.results, strict=True)
        self.outputs = tuple(_spec(name, result, {}) for name, result in pairs)

    @classmethod
    def load(cls, path: str | Path, instances: int | None = None) -> "DynamicModel":
        """The model of a file. Raises: ArtifactError; OptionError for inputs that no request has."""
        return cls(Executable.load(path), instances)

    def check(self, inputs: Mapping[str, Array]) -> None:
        """Raises: OptionError when a shape does not fit, or is out of its range."""
        try:
            bind(self._program.inputs, inputs, self._program.ranges)
        except ShapeMismatchError as error:
            raise OptionError(str(error)) from None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name. Raises: OptionError when the shapes do not fit each other or the memory."""
        machine = self._machines.get()
        try:
            results = machine.run(**inputs)
        except (ShapeMismatchError, MachineError) as error:
            raise OptionError(str(error)) from error
        except MemoryError as error:
            shapes = ", ".join(f"{name} of {list(array.shape)}" for name, array in inputs.items())
            raise OptionError(f"there is not enough memory for {shapes}") from error
        finally:
            self._machines.put(machine)
        arrays: Sequence[Array] = [results] if len(self.outputs) == 1 else results
        return {spec.name: np.asarray(array) for spec, array in zip(self.outputs, arrays, strict=True)}


def _spec(name: str, param: Param, ranges: Mapping[str, tuple[int, int]]) -> TensorSpec:
    """Raises: OptionError for what is no tensor."""
    if not param.is_tensor or param.dtype is None:
        raise OptionError(f"{param} cannot be served: a request has tensors of known types")
    dims = (None,) if param.dims is None else param.dims
    shape = tuple(dim if isinstance(dim, int) else ANY for dim in dims)
    most = tuple(dim if isinstance(dim, int) else ranges.get(str(dim), (0, None))[1] for dim in dims)
    return TensorSpec(name, shape, param.dtype, most)


def load_served(path: str | Path, instances: int | None = None) -> Model:
    """The model of a file, of known or of dynamic shapes. Raises: as `Model.load` and `DynamicModel.load`."""
    kind = DynamicModel if kind_of(Path(path)) == VM_EXECUTABLE else Model
    return kind.load(path, instances)
