"""`PlanRegion`: a region that is compiled for the only shapes that it is called with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.graph.ir import Array
from retune.compiler.graph.region import Param, Region, Shape
from retune.compiler.runtime.executor.plan import Plan


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanRegion(Region):
    """A plan, which calls kernels of the library. `buffers` are constants of the program by number of the plan's
    buffer.
    """

    kind: ClassVar[str] = "plan"

    plan: Plan
    buffers: Mapping[int, str]

    @classmethod
    def of(cls, name: str, plan: Plan, buffers: Mapping[int, str]) -> "PlanRegion":
        """The region of a plan. Raises: ArtifactError when the plan contradicts itself."""
        plan.verify({}, {call.kernel for call in plan.calls})
        outputs = [plan.buffers[number] for number in plan.outputs]
        return cls(
            name=name,
            inputs=tuple(plan.buffers[number].name for number in plan.inputs),
            constants=tuple(dict.fromkeys(buffers.values())),
            determining=(),
            results=tuple(Param(spec.name, spec.dtype, spec.shape) for spec in outputs),
            plan=plan,
            buffers=buffers,
        )

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels, each once, in the order of their first calls."""
        return tuple(dict.fromkeys(call.kernel for call in self.plan.calls))

    def _content(self) -> bytes:
        return self.to_bytes()

    def specialize(
        self, shapes: Mapping[str, Shape], values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> NoReturn:
        """Refuse. Raises: DefinitionError."""
        del shapes, values, constants
        raise DefinitionError(f"region {self.name} is compiled: its graph is not kept; compile the network itself")

    def evaluate(self, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> NoReturn:
        """Refuse. Raises: DefinitionError."""
        self.specialize({}, inputs, constants)

    def to_bytes(self) -> bytes:
        """The plan and the names of its constants as JSON."""
        return json.dumps({"plan": self.plan.dumps(), "buffers": list(self.buffers.items())}).encode()

    @classmethod
    def from_json(cls, name: str, head: JsonObject) -> "PlanRegion":
        """The region whose `to_bytes` gave this JSON. Raises: ArtifactError; an error of `DAMAGE`."""
        buffers = {int(number): str(constant) for number, constant in head["buffers"]}
        return cls.of(name, Plan.loads(head["plan"]), buffers)
