"""Runs a network, some of whose kernels run on a GPU, on arrays of the virtual machine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.plan_run import check_array
from retune.compiler.vm.program_constants import POOL
from retune.compiler.vm.resources import Resources


class DeviceRun:
    """The kernels of a network, some of which run on a GPU, on arrays of the caller."""

    def __init__(self, network: CompiledNetwork, kernels: Mapping[str, Kernel], resources: Resources) -> None:
        """`kernels` are those for the CPU, loaded. Raises: as `executor_of`."""
        plan = network.plan
        self._inputs = [plan.buffers[number] for number in plan.inputs]
        outputs = [plan.buffers[number] for number in plan.outputs]
        self._outputs = tuple((spec.shape, np.dtype(spec.dtype), spec.nbytes) for spec in outputs)
        self._allocator = resources.allocator
        # One array for equal constants of all shapes: their copies on the GPU are shared by address.
        constants = {number: POOL.intern(array) for number, array in network.constants.items()}
        network = replace(network, constants=constants)
        self._executor = executor_of(network, resources.threads, resources.devices, kernels)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, new arrays. Raises: MachineError when an array is not what the network takes; DeviceError."""
        for index, (spec, array) in enumerate(zip(self._inputs, inputs, strict=True)):
            check_array(spec, array)
            self._executor.set_input(index, array)
        self._executor.run()
        outputs = [self._allocator.array(shape, dtype, nbytes)[0] for shape, dtype, nbytes in self._outputs]
        for index, array in enumerate(outputs):
            self._executor.get_output(index, array)
        return outputs
