"""`SymbolicPlanRegion`: a region that is compiled once for all shapes that its guards allow.

Its plan calls kernels that take the sizes of the region's symbols; shapes and the arena are formulas over these. A
group of nodes without such a kernel is a region of its own, which is compiled for each shape. For other shapes the
region that the plan was made from, `general`, is read on demand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import ClassVar

from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.json_reader import JsonObject, integer, string
from retune.compiler.core.packing import Packing
from retune.compiler.graph.ir import Array, Graph
from retune.compiler.graph.region import Region, Shape, names_in
from retune.compiler.ir.dims import Dim, dim_from_json, dim_to_json
from retune.compiler.ir.guards import Assumptions, Guard
from retune.compiler.runtime.archive import Archive, archive_bytes, reject_damage
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.plan import READ_ONLY, BufferKind, BufferSpec, Call, Plan

_ARCHIVE, _VERSION = "symbolic plan", 1
_GENERAL, _GROUP = "general", "groups/{}"


@dataclass(frozen=True, slots=True)
class SymbolicPlan:
    """A plan whose shapes are formulas over symbols, which are extents of inputs. `slots` are the numbers of the
    buffers' slots in the arena, -1 for others: slots lie side by side, each as large as the largest of its buffers.
    Without slots, buffers have offsets. It holds for sizes that the `guards` allow.
    """

    plan: Plan
    slots: tuple[int, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols, sorted."""
        return tuple(
            sorted({name for spec in self.plan.buffers for dim in dims_of(spec.shape) for name in dim.symbols})
        )

    def verify(self, kernels: Mapping[str, KernelArtifact], constants: Mapping[int, Array]) -> None:
        """Check that a plan that runs touches only its own memory, for all sizes that the guards allow.

        Raises: ArtifactError that names the buffer or call at fault.
        """
        plan, where = self.plan, f"plan {self.plan.name}"
        if len(self.slots) != len(plan.buffers):
            raise ArtifactError(f"{where}: {len(self.slots)} slots for {len(plan.buffers)} buffers")
        bound = {str(dim) for number in plan.inputs for dim in dims_of(self._input(number).shape)}
        unbound = set(self.symbols).union(*(guard.dim.symbols for guard in self.guards)) - bound
        if unbound:
            raise ArtifactError(f"{where}: no input has the extent {min(unbound)}")
        with Assumptions({}, self.guards):
            for number, spec in enumerate(plan.buffers):
                self._verify_buffer(number, spec, constants)
            for call in plan.calls:
                self._verify_call(call, kernels.get(call.kernel))
            self.verify_outputs()

    def _input(self, number: int) -> BufferSpec:
        spec = self.plan.buffers[number] if 0 <= number < len(self.plan.buffers) else None
        if spec is None or spec.kind is not BufferKind.INPUT or spec.storage != number:
            raise ArtifactError(f"plan {self.plan.name}: buffer {number} is no input with memory of its own")
        return spec

    def _verify_buffer(self, number: int, spec: BufferSpec, constants: Mapping[int, Array]) -> None:
        where = f"plan {self.plan.name}: buffer {number} ({spec.name})"
        if not 0 <= spec.storage < len(self.plan.buffers):
            raise ArtifactError(f"{where}: no buffer {spec.storage} to share memory with")
        root = self.plan.root(number)
        # A view may be smaller than its owner, which is checked when sizes are known.
        if root.storage != spec.storage or root.kind is not spec.kind or self.slots[number] != self.slots[spec.storage]:
            raise ArtifactError(f"{where}: cannot share the memory of buffer {spec.storage} ({root.name})")
        if (self.slots[number] >= 0) != (spec.kind is BufferKind.INTERMEDIATE) or self.slots[number] >= len(self.slots):
            raise ArtifactError(f"{where}: has the slot {self.slots[number]}")
        array = constants.get(spec.storage)
        if spec.kind is BufferKind.CONSTANT and (array is None or array.nbytes != root.nbytes):
            raise ArtifactError(f"{where}: its constant is missing, or of another size")

    def verify_outputs(self) -> None:
        """Check that each output is a whole buffer of its own: a kernel would write beyond the array of another, or
        not into it. Raises: ArtifactError.
        """
        for number in self.plan.outputs:
            if not 0 <= number < len(self.plan.buffers):
                raise ArtifactError(f"plan {self.plan.name}: no buffer {number} for an output")
            spec, root = self.plan.buffers[number], self.plan.root(number)
            if root.kind is BufferKind.INTERMEDIATE or prod(spec.shape) != prod(root.shape):
                raise ArtifactError(f"plan {self.plan.name}: the output {spec.name} is not a whole buffer of its own")

    def _verify_call(self, call: Call, kernel: KernelArtifact | None) -> None:
        where = f"plan {self.plan.name}: call of {call.kernel}"
        if not all(0 <= number < len(self.plan.buffers) for number in call.buffers) or call.device:
            raise ArtifactError(f"{where}: no such buffers, or a device other than the CPU")
        if kernel is None:
            return
        if len(call.buffers) != len(kernel.args) or not set(kernel.symbols) <= set(self.symbols):
            raise ArtifactError(f"{where}: it takes {len(kernel.args)} buffers and sizes of {list(kernel.symbols)}")
        if not {name for dim in dims_of((kernel.workspace_bytes,)) for name in dim.symbols} <= set(kernel.symbols):
            raise ArtifactError(f"{where}: its workspace has {kernel.workspace_bytes} bytes")
        memory = [(spec.storage, slot) for spec, slot in ((self.plan.root(n), self.slots[n]) for n in call.buffers)]
        for index, (number, arg) in enumerate(zip(call.buffers, kernel.args, strict=True)):
            spec = self.plan.buffers[number]
            if spec.dtype != arg.dtype or prod(spec.shape) != arg.size:
                raise ArtifactError(
                    f"{where}: buffer {spec.name} is {spec.dtype}{list(spec.shape)}, "
                    f"argument {arg.name} is {arg.dtype}{list(arg.buffer_shape)}"
                )
            others = [other for at, other in enumerate(memory) if at != index]
            storage, slot = memory[index]
            is_shared = any(storage == other or (slot >= 0 and slot == place) for other, place in others)
            if arg.is_output and (spec.kind in READ_ONLY or is_shared):
                raise ArtifactError(f"{where}: writes to {spec.name}, which is read only, or another argument too")

    def to_json(self) -> dict[str, object]:
        """The plan as JSON."""
        shapes = [list(map(dim_to_json, spec.shape)) for spec in self.plan.buffers]
        plain = replace(self.plan, buffers=tuple(replace(spec, shape=()) for spec in self.plan.buffers))
        guards = [guard.to_json() for guard in self.guards]
        return {"plan": plain.dumps(), "shapes": shapes, "slots": self.slots, "guards": guards}

    @classmethod
    def from_json(cls, row: JsonObject) -> "SymbolicPlan":
        """The inverse of `to_json`. Raises: ArtifactError; an error of `DAMAGE`."""
        plan = Plan.loads(row["plan"])
        shapes = [tuple(map(dim_from_json, shape)) for shape in row["shapes"]]
        buffers = tuple(replace(spec, shape=shape) for spec, shape in zip(plan.buffers, shapes, strict=True))
        guards = tuple(Guard.of(*guard) for guard in row["guards"])
        return cls(replace(plan, buffers=buffers), tuple(map(integer, row["slots"])), guards)


def dims_of(shape: Shape) -> list[Dim]:
    """The symbolic extents of a shape."""
    return [extent for extent in shape if isinstance(extent, Dim)]


@dataclass(frozen=True, eq=False, kw_only=True)
class SymbolicPlanRegion(Region):
    """A symbolic plan. `buffers` are constants of the program by number of the plan's buffer; `groups` are the regions
    of groups without a symbolic kernel, by the name that calls have, and `reasons` why they have none. Regions are
    bytes until they are needed, which `read` reads.
    """

    kind: ClassVar[str] = "symbolic plan"

    plan: SymbolicPlan
    buffers: Mapping[int, str]
    general: bytes
    groups: Mapping[str, bytes]
    reasons: Mapping[str, str]
    read: Callable[[str, bytes], Region]

    def _content(self) -> bytes:
        return self.to_bytes()

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels, each once, in the order of their first calls."""
        return tuple(dict.fromkeys(call.kernel for call in self.plan.plan.calls if call.kernel not in self.groups))

    def packings(self, kernels: Mapping[str, KernelArtifact]) -> dict[str, Packing]:
        """The packings of constants that kernels read, by the constant's name."""
        calls = (call for call in self.plan.plan.calls if call.kernel in kernels)
        pairs = (pair for call in calls for pair in zip(call.buffers, kernels[call.kernel].args, strict=True))
        return {self.buffers[number]: arg.packing for number, arg in pairs if arg.packing is not None}

    @cached_property
    def original(self) -> Region:
        """The region for any shapes. Raises: ArtifactError."""
        return self.read("symbolic", self.general)

    def group(self, name: str) -> Region:
        """The region of a group. Raises: ArtifactError."""
        return self.read("symbolic", self.groups[name])

    def specialize(
        self, shapes: Mapping[str, Shape], values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> Graph:
        """As the original region."""
        return self.original.specialize(shapes, values, constants)

    def evaluate(self, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> tuple[Array, ...]:
        """As the original region."""
        return self.original.evaluate(inputs, constants)

    def to_bytes(self) -> bytes:
        head = {
            "name": self.name,
            **self._description(),
            "plan": self.plan.to_json(),
            "buffers": list(self.buffers.items()),
            "reasons": dict(self.reasons),
            "groups": list(self.groups),
        }
        groups = {_GROUP.format(number): data for number, data in enumerate(self.groups.values())}
        return archive_bytes(_ARCHIVE, _VERSION, {"region.json": head, _GENERAL: self.general, **groups}, compress=True)

    @classmethod
    def from_bytes(cls, data: bytes, read: Callable[[str, bytes], Region]) -> "SymbolicPlanRegion":
        """The inverse of `to_bytes`; `read` reads a region of a kind. Raises: ArtifactError."""
        with reject_damage("region", "these bytes"):
            archive = Archive(data, _ARCHIVE, _VERSION)
            head = archive.json("region.json")
            groups = {name: archive.blob(_GROUP.format(number)) for number, name in enumerate(names_in(head["groups"]))}
            return cls(
                **cls._fields(head),
                plan=SymbolicPlan.from_json(head["plan"]),
                buffers={integer(number): string(name) for number, name in head["buffers"]},
                general=archive.blob(_GENERAL),
                groups=groups,
                reasons={string(name): string(reason) for name, reason in head["reasons"].items()},
                read=read,
            )
