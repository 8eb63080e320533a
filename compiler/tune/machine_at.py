"""`MachineAt`: a network of dynamic shapes at one shape, with the part of a `GraphExecutor` that comparisons need."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import Device, cpu
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.machine import VirtualMachine


class MachineAt:
    """Runs an executable with `sizes` for the symbols of its inputs, which are tensors."""

    devices: tuple[Device, ...] = (cpu(0),)

    def __init__(self, machine: VirtualMachine, executable: Executable, sizes: Mapping[str, int]) -> None:
        self._machine, self._program, self._sizes = machine, executable.program, sizes
        self._inputs: dict[str, Array] = {}
        self._outputs: list[Any] = []

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and types of the inputs, by name."""
        shapes = {
            param.name: tuple(self._sizes[dim] if isinstance(dim, str) else dim or 0 for dim in param.dims or ())
            for param in self._program.inputs
        }
        return shapes, {param.name: str(param.dtype) for param in self._program.inputs}

    def set_input(self, key: str, value: Array) -> None:
        """Give an input its array. Raises: ShapeMismatchError when the last of them does not fit."""
        self._inputs[key] = value
        if len(self._inputs) == len(self._program.inputs):
            self._machine.set_input("main", **self._inputs)

    def run(self) -> None:
        """Compute the outputs."""
        outputs = self._machine.run()
        self._outputs = list(outputs) if len(self._program.outputs) != 1 else [outputs]

    def get_num_outputs(self) -> int:
        return len(self._program.outputs)

    def get_output(self, index: int) -> Array:
        return np.asarray(self._outputs[index])
