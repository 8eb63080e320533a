"""Runs a compiled network with kernels for a GPU on arrays, and returns its outputs as new arrays.

Inputs are copied to the GPU, and outputs back, in every call; constants are there once, whatever shapes they are read
for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.plan_run import POOL, Source, facts_of
from retune.compiler.vm.resources import Resources


class DeviceRun:
    """The kernels of a network, some of which run on a GPU, on arrays of the caller."""

    def __init__(self, network: CompiledNetwork, kernels: Mapping[str, Kernel], resources: Resources) -> None:
        """`kernels` are those for the CPU, loaded. Raises: as `executor_of`."""
        plan = network.plan
        self._sources = tuple(Source(fact) for fact in facts_of(plan, plan.inputs))
        outputs = [plan.buffers[number] for number in plan.outputs]
        self._outputs = tuple((spec.shape, np.dtype(spec.dtype), spec.nbytes) for spec in outputs)
        self._allocator = resources.allocator
        # One array for equal constants of all shapes: their copies on the GPU are shared by address.
        constants = {number: POOL.interned(array) for number, array in network.constants.items()}
        network = replace(network, constants=constants)
        self._executor = executor_of(network, resources.threads, resources.devices, kernels)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, new arrays. Raises: MachineError when an array is not what the network takes; DeviceError."""
        for index, (source, array) in enumerate(zip(self._sources, inputs, strict=True)):
            source.take(array)
            self._executor.set_input(index, array)
        self._executor.run()
        outputs = [self._allocator.array(shape, dtype, nbytes)[0] for shape, dtype, nbytes in self._outputs]
        for index, array in enumerate(outputs):
            self._executor.get_output(index, array)
        return outputs
