"""In: a network with kernels for a GPU, and that GPU. Out: a call that fills arrays of the caller with its outputs.

Always: as `PlanRun`. Inputs are copied to the GPU, and outputs back, in every call; constants are there once, whatever
shapes they are read for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.compiler.executor.executors import executor_on
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import Device
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.plan_run import POOL, check_arrays, facts_of


class DeviceRun:
    """The kernels of a network, some of which run on a GPU, on arrays of the caller."""

    def __init__(
        self, network: CompiledNetwork, kernels: Mapping[str, Kernel], threads: int, devices: Sequence[Device]
    ) -> None:
        """`kernels` are those for the processor, loaded. Raises: as `executor_on`."""
        plan = network.plan
        self._inputs, self._outputs = facts_of(plan, plan.inputs), facts_of(plan, plan.outputs)
        constants = {number: POOL.interned(array) for number, array in network.constants.items()}
        self._executor = executor_on(replace(network, constants=constants), devices, threads, kernels)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute. Raises: MachineError when an array is not what the network takes or gives; DeviceError."""
        check_arrays(self._inputs, inputs)
        check_arrays(self._outputs, outputs)
        for place, array in enumerate(inputs):
            self._executor.set_input(place, array)
        self._executor.run()
        for place, array in enumerate(outputs):
            self._executor.get_output(place, array)
