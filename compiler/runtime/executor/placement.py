"""Places the copies between devices that a plan needs among its calls.

Before a call the latest values of its operands are on its device; at the end the outputs are on the host, which has the
inputs from the beginning. Nothing is copied twice, or without a reader.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.plan import BufferKind, Call, Plan

HOST = 0
"""The device of inputs and outputs."""

FIRST_GPU = 1
"""The default device of code for a GPU."""


@dataclass(frozen=True, slots=True)
class Run:
    """Call number `call` of the plan on a device."""

    call: int
    device: int

    def __str__(self) -> str:
        return f"run call {self.call} on {self.device}"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the memory of buffer number `storage` from one device to another."""

    storage: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"copy %{self.storage} from {self.source} to {self.target}"


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """The `steps` of every run, and the copies of `constants`, which are made once. `copies_before[i]`: copies that
    call `i` needs when run alone. `homes`: the device of a run's last write of each buffer that owns memory.
    """

    constants: tuple[Copy, ...]
    steps: tuple[Run | Copy, ...]
    copies_before: tuple[tuple[Copy, ...], ...]
    homes: Mapping[int, int]

    @property
    def last(self) -> tuple[Copy, ...]:
        """The copies after all calls: of outputs to the host."""
        end = max((index for index, step in enumerate(self.steps) if isinstance(step, Run)), default=-1)
        return tuple(step for step in self.steps[end + 1 :] if isinstance(step, Copy))

    @property
    def copies(self) -> tuple[Copy, ...]:
        return tuple(step for step in self.steps if isinstance(step, Copy))

    def used_buffers(self, plan: Plan, device: int) -> list[int]:
        """The numbers of the buffers a device needs, by owner."""
        numbers: set[int] = set()
        for step in (*self.constants, *self.steps):
            if isinstance(step, Copy) and device in (step.source, step.target):
                numbers.add(step.storage)
            elif isinstance(step, Run) and step.device == device:
                numbers |= {plan.buffers[number].storage for number in plan.calls[step.call].buffers}
        return sorted(numbers)

    def __str__(self) -> str:
        return "\n".join([*(f"once: {copy}" for copy in self.constants), *map(str, self.steps)])


def place_copies(plan: Plan, kernels: Mapping[str, KernelArtifact], functions: Collection[str] = ()) -> PlacedPlan:
    """The calls of a plan with their copies. A call of one of `functions`, which are not compiled, reads its buffers
    that were written before, and writes the others.

    Raises: ArtifactError when a call is of neither, or reads an unwritten buffer.
    """
    # One forward pass (as dataflow over straight-line code): per buffer the devices that have its latest value.
    where: dict[int, list[int]] = {}
    for number, spec in enumerate(plan.buffers):
        if spec.storage == number and spec.kind in (BufferKind.INPUT, BufferKind.CONSTANT):
            where[number] = [HOST]
    once: list[Copy] = []
    steps: list[Run | Copy] = []
    copies_before: list[tuple[Copy, ...]] = []

    def bring(storage: int, device: int) -> None:
        known = where.setdefault(storage, [])
        if device in known:
            return
        if not known:
            raise ArtifactError(f"plan {plan.name}: {plan.buffers[storage].name} is read before anything writes it")
        constant = plan.buffers[storage].kind is BufferKind.CONSTANT
        (once if constant else steps).append(Copy(storage, known[0], device))
        # Now up to date on both, so a second reader there copies nothing.
        known.append(device)

    for number, call in enumerate(plan.calls):
        roots = [plan.buffers[at].storage for at in call.buffers]
        writes = _writes(plan, call, kernels, functions, where)
        read = dict.fromkeys(root for root, written in zip(roots, writes, strict=True) if not written)
        for at, written in zip(call.buffers, writes, strict=True):  # a partly written buffer keeps its other part
            root = plan.buffers[at].storage
            if written and where.get(root) and plan.buffers[at].nbytes < plan.buffers[root].nbytes:
                read[root] = None
        for root in read:
            bring(root, call.device)
        homes = ((root, where[root][0]) for root in read)
        copies_before.append(tuple(Copy(root, home, call.device) for root, home in homes if home != call.device))
        steps.append(Run(number, call.device))
        for root, written in zip(roots, writes, strict=True):
            if written:
                # A write makes every other copy stale.
                where[root] = [call.device]
    for number in plan.outputs:
        bring(plan.buffers[number].storage, HOST)
    ends = {root: known[0] for root, known in where.items() if known}
    return PlacedPlan(tuple(once), tuple(steps), tuple(copies_before), ends)


def _writes(
    plan: Plan,
    call: Call,
    kernels: Mapping[str, KernelArtifact],
    functions: Collection[str],
    where: Mapping[int, Sequence[int]],
) -> list[bool]:
    """Which of its buffers a call writes; `where` has the devices with the latest value of each written buffer."""
    if call.kernel in kernels:
        return [spec.is_output for spec in kernels[call.kernel].args]
    if call.kernel in functions:
        return [not where.get(plan.buffers[at].storage) for at in call.buffers]
    raise ArtifactError(f"plan {plan.name}: no kernel {call.kernel!r} is given")
