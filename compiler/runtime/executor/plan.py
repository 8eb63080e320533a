"""The plan of a network: which kernels run in which order on which buffers.

A plan is frozen, and read and written as JSON. A plan that `verify` accepts cannot make a kernel touch foreign memory.

    Plan   = name, buffers, calls, inputs, outputs, arena_bytes
    Buffer = name: dtype[shape], kind, storage       storage: where its memory is
        input, output, constant                 its own array, storage is the buffer's own number
        intermediate                            `offset` bytes into the arena
        any with another storage                a view of that buffer in another shape
    Call   = kernel(buffer numbers in argument order)
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from retune.compiler.core.dtype import item_bytes, number_type
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.json_reader import JsonObject, integer, string
from retune.compiler.runtime.archive import DAMAGE, damage_text
from retune.compiler.runtime.artifact import ALIGNMENT, KernelArtifact

PLAN_VERSION = 1
_MOST_DIMENSIONS = 64
"""NumPy's limit."""
# Far above any machine: it keeps a damaged plan from creating billions of memories.
_MOST_DEVICES = 64
"""Besides the CPU."""


class BufferKind(StrEnum):
    """The owner of a buffer's memory and the time of its writes."""

    INPUT = "input"
    CONSTANT = "constant"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


READ_ONLY = frozenset({BufferKind.INPUT, BufferKind.CONSTANT})
"""The kinds of buffers that no kernel writes to."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer. `storage` is the number of the buffer that owns its memory; intermediates are at `offset` bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: BufferKind
    storage: int
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * item_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call; `label` names, for people, the nodes of the network that it computes, `device` is the number of
    its device, 0 for the CPU.
    """

    kernel: str
    buffers: tuple[int, ...]
    label: str = ""
    device: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A network ready to run. `inputs` and `outputs` are buffer numbers in the network's order."""

    name: str
    buffers: tuple[BufferSpec, ...]
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int

    def root(self, number: int) -> BufferSpec:
        """The buffer that owns the memory of buffer `number`."""
        return self.buffers[self.buffers[number].storage]

    def verify(self, kernels: Mapping[str, KernelArtifact], functions: Collection[str] = ()) -> None:
        """Check the plan against itself and the kernels it calls. Calls of `functions`, which are not compiled, are
        checked for their buffer numbers only.

        Raises: ArtifactError that names the buffer or call at fault.
        """
        for number, buffer in enumerate(self.buffers):
            self._verify_buffer(number, buffer)
        for number in (*self.inputs, *self.outputs):
            if not 0 <= number < len(self.buffers):
                raise ArtifactError(f"plan {self.name}: no buffer {number} for an input or output")
        for number in self.inputs:
            if self.buffers[number].storage != number or self.buffers[number].kind is not BufferKind.INPUT:
                raise ArtifactError(f"plan {self.name}: {self.buffers[number].name} is no input with memory of its own")
        for call in self.calls:
            if not 0 <= call.device <= _MOST_DEVICES:
                raise ArtifactError(f"plan {self.name}: call of {call.kernel}: no device {call.device}")
            for number in call.buffers:
                if not 0 <= number < len(self.buffers):
                    raise ArtifactError(f"plan {self.name}: call of {call.kernel}: no buffer {number}")
            if call.kernel in kernels:
                self._verify_call(call, kernels[call.kernel])
            elif call.kernel not in functions:
                raise ArtifactError(f"plan {self.name}: no kernel {call.kernel!r}")

    def _verify_buffer(self, number: int, buffer: BufferSpec) -> None:
        where = f"plan {self.name}: buffer {number} ({buffer.name})"
        if any(extent < 0 for extent in buffer.shape):
            raise ArtifactError(f"{where}: negative shape {buffer.shape}")
        if len(buffer.shape) > _MOST_DIMENSIONS:
            raise ArtifactError(f"{where}: {len(buffer.shape)} dimensions; the most are {_MOST_DIMENSIONS}")
        if not 0 <= buffer.storage < len(self.buffers):
            raise ArtifactError(f"{where}: no buffer {buffer.storage} to share memory with")
        root = self.root(number)
        # A view shows the memory of an owner, never of another view: one step leads to the memory.
        if root.storage != buffer.storage or root.nbytes < buffer.nbytes or root.kind is not buffer.kind:
            raise ArtifactError(f"{where}: cannot share the memory of buffer {buffer.storage} ({root.name})")
        if buffer.kind is BufferKind.INTERMEDIATE and buffer.storage == number:
            fits = buffer.offset >= 0 and buffer.offset + buffer.nbytes <= self.arena_bytes
            if not fits or buffer.offset % ALIGNMENT:
                raise ArtifactError(f"{where}: offset {buffer.offset} is not a place in {self.arena_bytes} bytes")

    def _verify_call(self, call: Call, kernel: KernelArtifact) -> None:
        where = f"plan {self.name}: call of {call.kernel}"
        if len(call.buffers) != len(kernel.args):
            raise ArtifactError(f"{where}: {len(call.buffers)} buffers for {len(kernel.args)} arguments")
        for number, spec in zip(call.buffers, kernel.args, strict=True):
            buffer = self.buffers[number]
            if math.prod(buffer.shape) != spec.size or buffer.dtype != spec.dtype:
                raise ArtifactError(
                    f"{where}: buffer {buffer.name} is {buffer.dtype}{list(buffer.shape)}, "
                    f"argument {spec.name} is {spec.dtype}{list(spec.buffer_shape)}"
                )
            if spec.is_output and buffer.kind in READ_ONLY:
                raise ArtifactError(f"{where}: writes to {buffer.name}, which is read only: {buffer.kind}")

    def dumps(self) -> str:
        return json.dumps({"version": PLAN_VERSION, **asdict(self)}, indent=1)

    @classmethod
    def loads(cls, text: str) -> "Plan":
        """The inverse of `dumps`.

        Raises: ArtifactError when the text is not a plan of this version.
        """
        try:
            data = json.loads(text)
            version = data["version"]
            if version != PLAN_VERSION:
                raise ArtifactError(f"the plan has version {version!r}; this Retune reads version {PLAN_VERSION}")
            return _from_data(data)
        except DAMAGE as error:
            raise ArtifactError(f"the plan cannot be read: {damage_text(error)}") from error

    def __str__(self) -> str:
        lines = [f"plan {self.name}: arena {self.arena_bytes} bytes"]
        for number, buffer in enumerate(self.buffers):
            offset = f"+{buffer.offset}" if buffer.kind is BufferKind.INTERMEDIATE else ""
            view = f" = %{buffer.storage}" if buffer.storage != number else ""
            lines.append(f"  %{number} {buffer.kind}{offset} {buffer.name}: {buffer.dtype}{list(buffer.shape)}{view}")
        for call in self.calls:
            where = f" on device {call.device}" if call.device else ""
            lines.append(f"  {call.kernel}({', '.join(f'%{number}' for number in call.buffers)}){where}")
        lines.append(f"  return {', '.join(f'%{number}' for number in self.outputs)}")
        return "\n".join(lines)


def _from_data(data: JsonObject) -> Plan:
    buffers = tuple(
        BufferSpec(
            name=string(entry["name"]),
            shape=_ints(entry["shape"]),
            dtype=number_type(entry["dtype"]),
            kind=BufferKind(entry["kind"]),
            storage=integer(entry["storage"]),
            offset=integer(entry["offset"]),
        )
        for entry in data["buffers"]
    )
    calls = tuple(
        Call(string(entry["kernel"]), _ints(entry["buffers"]), string(entry["label"]), integer(entry.get("device", 0)))
        for entry in data["calls"]
    )
    return Plan(
        name=string(data["name"]),
        buffers=buffers,
        calls=calls,
        inputs=_ints(data["inputs"]),
        outputs=_ints(data["outputs"]),
        arena_bytes=integer(data["arena_bytes"]),
    )


def _ints(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(map(integer, values))
