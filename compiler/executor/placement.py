"""In: a plan whose calls name devices. Out: the calls, and the copies between devices that they need, in order.

Always: before a call all that it reads is on its device, as it was written last; in the end the outputs are on device
0, which has the inputs from the beginning. Nothing is copied twice, nor what nobody reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.errors import ArtifactError
from compiler.executor.plan import BufferKind, Plan
from compiler.runtime.artifact import KernelArtifact

HOST = 0
"""The number of the device that inputs come from and outputs go to."""


GPU_PLACE = 1
"""The number of the device that code for a GPU runs on, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Run:
    """Call number `call` of the plan on a device."""

    call: int
    device: int

    def __str__(self) -> str:
        return f"run call {self.call} on {self.device}"


@dataclass(frozen=True, slots=True)
class Copy:
    """What is in the memory of buffer number `storage` goes from one device to another."""

    storage: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"copy %{self.storage} from {self.source} to {self.target}"


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """What is done once, and what is done in every run: `constants` are the copies of what never changes."""

    constants: tuple[Copy, ...]
    steps: tuple[Run | Copy, ...]

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copies of every run."""
        return tuple(step for step in self.steps if isinstance(step, Copy))

    def __str__(self) -> str:
        return "\n".join([*(f"once: {copy}" for copy in self.constants), *map(str, self.steps)])


def placed(plan: Plan, kernels: Mapping[str, KernelArtifact]) -> PlacedPlan:
    """The calls of a plan with the copies that they need.

    Raises: ArtifactError when a call is no kernel's, so that nobody knows what it reads.
    """
    where: dict[int, list[int]] = {}
    for number, spec in enumerate(plan.buffers):
        if spec.storage == number and spec.kind in (BufferKind.INPUT, BufferKind.CONSTANT):
            where[number] = [HOST]
    once: list[Copy] = []
    steps: list[Run | Copy] = []

    def bring(storage: int, device: int) -> None:
        known = where.setdefault(storage, [])
        if device in known:
            return
        if not known:
            raise ArtifactError(f"plan {plan.name}: {plan.buffers[storage].name} is read before anything writes it")
        constant = plan.buffers[storage].kind is BufferKind.CONSTANT
        (once if constant else steps).append(Copy(storage, known[0], device))
        known.append(device)

    for number, call in enumerate(plan.calls):
        if call.kernel not in kernels:
            raise ArtifactError(f"plan {plan.name}: {call.kernel} is no kernel, so it runs on one device alone")
        specs = kernels[call.kernel].args
        pairs = [(plan.buffers[at].storage, spec.is_output) for at, spec in zip(call.buffers, specs, strict=True)]
        for storage, written in pairs:
            if not written:
                bring(storage, call.device)
        steps.append(Run(number, call.device))
        for storage, written in pairs:
            if written:
                where[storage] = [call.device]
    for number in plan.outputs:
        bring(plan.buffers[number].storage, HOST)
    return PlacedPlan(tuple(once), tuple(steps))
