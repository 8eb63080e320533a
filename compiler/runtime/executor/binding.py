"""Binds the calls of a plan to the memories of its devices, and orders them into the steps of a run."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.executor.device_copies import DeviceCopies
from retune.compiler.runtime.executor.device_memory import DeviceMemory
from retune.compiler.runtime.executor.host_memory import HostFunction, HostMemory, missing_kernel
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.placement import Copy, PlacedPlan, Run
from retune.compiler.runtime.executor.plan import READ_ONLY, Plan

BoundCall = Callable[[], object]


def check_devices(plan: Plan, functions: Mapping[str, HostFunction], memories: int) -> None:
    """Check that every device has a memory, and that Python functions run on the CPU. Raises: ArtifactError."""
    for call in plan.calls:
        if call.device > memories:
            raise ArtifactError(
                f"network {plan.name} also runs on device {call.device}, in its call of {call.kernel}, and {memories} "
                "memories of devices are given: retune.compiler.runtime.executor.executors.executor_of makes them"
            )
        if call.device and call.kernel in functions:
            raise ArtifactError(f"network {plan.name}: {call.kernel} is a function of Python, which no device runs")


def bind_calls(
    network: CompiledNetwork, functions: Mapping[str, HostFunction], host: HostMemory, memories: Sequence[DeviceMemory]
) -> tuple[BoundCall, ...]:
    """The calls of the plan. Raises: ArtifactError when a kernel is missing or does not fit; DeviceError."""
    plan = network.plan
    artifacts = {kernel.name: kernel for kernel in network.kernels}
    known = {number for number, spec in enumerate(plan.buffers) if spec.kind in READ_ONLY}
    bound: list[BoundCall] = []
    for call in plan.calls:
        roots = [plan.buffers[number].storage for number in call.buffers]
        if call.kernel in artifacts:
            bound.append(memories[call.device].bind(artifacts[call.kernel], call.buffers))
        elif call.kernel in functions:  # the function writes the buffers that nothing has written yet
            inputs = sum(root in known for root in roots)
            bound.append(host.bind_function(functions[call.kernel], call.buffers, inputs))
        else:
            raise ArtifactError(missing_kernel(plan, call.kernel))
        known.update(roots)
    return tuple(bound)


def order_steps(
    placed: PlacedPlan, calls: Sequence[BoundCall], copies: DeviceCopies, memories: Sequence[DeviceMemory]
) -> tuple[BoundCall, ...]:
    """The steps of a run: consecutive calls of one device as one step, and the copies between them."""
    steps: list[BoundCall] = []
    # `groupby` joins neighbors only, so the order of the steps stays.
    for device, group in groupby(placed.steps, key=_device_of):
        made = [calls[step.call] if isinstance(step, Run) else copies.step(step) for step in group]
        steps += made if device is None else memories[device].capture(made)
    return (*steps, *copies.finish)


def _device_of(step: Run | Copy) -> int | None:
    """The device of a call, None for a copy."""
    return step.device if isinstance(step, Run) else None
