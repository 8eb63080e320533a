"""In: a compiled network whose kernels are for several devices. Out: its outputs.

Always: everything is allocated and bound when the executor is made; a run is calls and copies in the order of
`compiler.executor.placement`. What is not on the processor is copied through its memory.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from compiler.errors import ArtifactError, OptionError
from compiler.executor.memory import check_fit
from compiler.executor.network import CompiledNetwork
from compiler.executor.placement import HOST, Copy, PlacedPlan, Run, placed
from compiler.executor.plan import Plan
from compiler.executor.stores import Store
from compiler.runtime.artifact import Array
from compiler.runtime.timing import BenchmarkResult, TimeEvaluator


class HeterogeneousExecutor:
    """Runs a network on several devices, each with a `Store`; that of the processor comes first.

    executor = HeterogeneousExecutor(network, [HostStore(threads=2), CudaStore(driver())])
    executor.run(image=array)
    scores = executor.get_output(0)
    """

    def __init__(self, network: CompiledNetwork, stores: Sequence[Store], *, replay: bool = False) -> None:
        """Make room, load all kernels, and copy constants to where they are read. With `replay` the calls between two
        copies are recorded by their device in the first run, and launched as one in those after it.

        Raises: ArtifactError when the network is inconsistent or names a device that has no store; DeviceError.
        """
        network.verify()
        plan = network.plan
        missing = sorted({call.device for call in plan.calls if not 0 <= call.device < len(stores)})
        if missing:
            numbers = ", ".join(map(str, missing))
            raise ArtifactError(f"network {plan.name}: runs on device {numbers} too, but {len(stores)} are given")
        kernels = {kernel.name: kernel for kernel in network.kernels}
        self.plan: Plan = plan
        self.placed: PlacedPlan = placed(plan, kernels)
        self._stores = tuple(stores)
        self._inputs = {plan.buffers[number].name: number for number in plan.inputs}
        for device, store in enumerate(stores):
            store.open(plan, network.constants, sorted(_used(plan, self.placed, device)))
        for copy in self.placed.constants:
            self._copied(copy)()
        self._single = [self._bound(step, network) for step in self.placed.steps]
        self._steps = self._replayed(self._single) if replay else tuple(self._single)

    def set_input(self, key: str | None = None, value: Array | None = None, /, **inputs: Array) -> None:
        """Copy `value` into the input `key`, and every other array into the input of its name.

        Raises: OptionError when there is no such input, or an array has another shape or dtype.
        """
        if key is not None and value is not None:
            inputs = {key: value, **inputs}
        for name, array in inputs.items():
            if name not in self._inputs:
                raise OptionError(f"no input {name!r}; the inputs are {', '.join(self._inputs)}")
            number = self._inputs[name]
            check_fit(np.asarray(array), self.plan.buffers[number], "input")
            self._stores[HOST].write(number, np.asarray(array))

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs, by name."""
        specs = {name: self.plan.buffers[number] for name, number in self._inputs.items()}
        return {name: spec.shape for name, spec in specs.items()}, {name: spec.dtype for name, spec in specs.items()}

    def get_num_outputs(self) -> int:
        """How many outputs the network has."""
        return len(self.plan.outputs)

    def run(self, /, **inputs: Array) -> None:
        """Set the given inputs and compute all outputs. Raises: OptionError as `set_input`; DeviceError."""
        self.set_input(**inputs)
        for step in self._steps:
            step()

    def benchmark(self, *, repeat: int = 5, number: int = 5, min_repeat_ms: float = 0.0) -> BenchmarkResult:
        """Seconds of a run, one entry per repeat; copies of inputs to where they are read, and of outputs back, are
        part of it. Raises: OptionError when an argument makes no sense; DeviceError.
        """
        return TimeEvaluator(number=number, repeat=repeat, min_repeat_ms=min_repeat_ms)(self.run)

    def calls_on(self, device: int) -> tuple[Callable[[], object], ...]:
        """The calls of a run that a device makes, in order; whoever makes them alone sees to the copies."""
        pairs = zip(self.placed.steps, self._single, strict=True)
        return tuple(bound for step, bound in pairs if isinstance(step, Run) and step.device == device)

    def get_output(self, index: int) -> Array:
        """A copy of an output. Raises: OptionError when there is no such output."""
        if not 0 <= index < len(self.plan.outputs):
            raise OptionError(f"no output {index}; the network has {len(self.plan.outputs)}")
        number = self.plan.outputs[index]
        return np.array(self._stores[HOST].read(number)).reshape(self.plan.buffers[number].shape)

    def _bound(self, step: Run | Copy, network: CompiledNetwork) -> Callable[[], object]:
        if isinstance(step, Copy):
            return self._copied(step)
        call = self.plan.calls[step.call]
        artifact = next(kernel for kernel in network.kernels if kernel.name == call.kernel)
        return self._stores[step.device].bind(artifact, call.buffers)

    def _replayed(self, steps: Sequence[Callable[[], object]]) -> tuple[Callable[[], object], ...]:
        """The steps, those of one device that follow each other as one."""
        found: list[Callable[[], object]] = []
        where = [step.device if isinstance(step, Run) else None for step in self.placed.steps]
        for device, group in groupby(zip(where, steps, strict=True), key=lambda pair: pair[0]):
            calls = [call for _, call in group]
            found += calls if device is None else [self._stores[device].replayed(calls)]
        return tuple(found)

    def _copied(self, copy: Copy) -> Callable[[], None]:
        source, target = self._stores[copy.source], self._stores[copy.target]
        return lambda: target.write(copy.storage, source.read(copy.storage))


def _used(plan: Plan, steps: PlacedPlan, device: int) -> set[int]:
    """The numbers of the buffers that own the memory that a device needs."""
    found = {plan.buffers[number].storage for number in (*plan.inputs, *plan.outputs)} if device == HOST else set()
    for step in (*steps.constants, *steps.steps):
        if isinstance(step, Copy) and device in (step.source, step.target):
            found.add(step.storage)
        elif isinstance(step, Run) and step.device == device:
            found |= {plan.buffers[number].storage for number in plan.calls[step.call].buffers}
    return found
