"""The saved form of an executable's program: parts of an archive. Reading checks types; `Executable` verifies the rest.

program.json      name, outputs, functions; names and kinds of regions; names of constants; facts of late-bound ones
regions/N.json    the plan of region number N, and the names of its constants
regions/N.bin     region number N of another kind, see `retune.compiler.graph.region`
constants/N.npy   constant number N
"""

import hashlib
import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.core.dtype import number_type
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.json_reader import JsonObject, integer, string
from retune.compiler.core.packing import Packing
from retune.compiler.graph.program import Arm, Branch, Call, Function, HostCall, Loop, Program, Statement
from retune.compiler.graph.region import Param, Region, names_in
from retune.compiler.runtime.archive import Archive
from retune.compiler.runtime.artifact import Array
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.program_constants import ProgramConstants, Unpacked, stored_constants
from retune.compiler.vm.symbolic_plan import SymbolicPlanRegion

PROGRAM = "program.json"
# NumPy's limits, with room for the rows of a loop.
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 1 << 56


@dataclass(frozen=True, slots=True)
class LateBound:
    """A constant that is taken out of an executable, and bound again before the executable runs."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    """SHA-256 of the content."""

    @classmethod
    def of(cls, array: Array) -> "LateBound":
        """The facts of `array`."""
        return cls(array.dtype.name, array.shape, _digest(array))

    def check(self, name: str, array: Array) -> None:
        """Check that `array`, which is given for the constant `name`, is the array that was taken out.

        Raises: ArtifactError.
        """
        if (array.dtype.name, array.shape) != (self.dtype, self.shape):
            kind = f"{array.dtype.name}{list(array.shape)}"
            raise ArtifactError(f"the constant {name} is {self.dtype}{list(self.shape)}, not {kind}")
        if _digest(array) != self.digest:
            raise ArtifactError(
                f"the constant {name} has other values than the one that was taken out of this executable: "
                "bind the constants that were moved out of the very same one"
            )


def _digest(array: Array) -> str:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.sha256(content.data).hexdigest()


def program_parts(program: Program, late: Mapping[str, LateBound]) -> dict[str, object]:
    """The parts of a program and of its late-bound constants."""
    calls = [s for function in program.functions.values() for s in function.body if isinstance(s, Call | HostCall)]
    regions = list({id(call.region): call.region for call in calls}.values())
    stored = stored_constants(program.constants)
    unpacked = program.constants.unpacked if isinstance(program.constants, ProgramConstants) else {}
    numbers = {id(region): number for number, region in enumerate(regions)}
    head = {
        "name": program.name,
        "outputs": program.outputs,
        "ranges": dict(program.ranges),
        "regions": [[region.name, region.kind] for region in regions],
        "constants": list(stored),
        "unpacked": [
            [name, row.source, row.packing.dims, row.packing.order, row.packing.extents, row.shape]
            for name, row in unpacked.items()
        ],
        "late": [[name, facts.dtype, facts.shape, facts.digest] for name, facts in late.items()],
        "functions": [
            {
                "name": function.name,
                "params": [param.to_json() for param in function.params],
                "body": [_row(statement, numbers) for statement in function.body],
                "results": [result.to_json() for result in function.results],
            }
            for function in program.functions.values()
        ],
    }
    return {
        PROGRAM: head,
        **{_region_part(number, region.kind): region.to_bytes() for number, region in enumerate(regions)},
        **{f"constants/{number}.npy": array for number, array in enumerate(stored.values())},
    }


def _region_part(number: int, kind: str) -> str:
    # The archive bounds JSON by the name of its part.
    return f"regions/{number}.{'json' if kind == PlanRegion.kind else 'bin'}"


def _row(statement: Statement, numbers: Mapping[int, int]) -> list[object]:
    match statement:
        case Call(region, inputs, outputs):
            return ["call", numbers[id(region)], inputs, outputs]
        case HostCall(region, inputs, outputs):
            return ["host", numbers[id(region)], inputs, outputs]
        case Branch(condition, then, otherwise, outputs):
            arms = [[arm.function, arm.inputs] for arm in (then, otherwise)]
            return ["branch", condition, *arms, outputs]
        case Loop(count, condition, body, carried, captured, outputs, collected):
            return ["loop", count, condition, body, carried, captured, outputs, collected]


def program_in(archive: Archive) -> tuple[Program, dict[str, LateBound]]:
    """The program in an archive and its late-bound constants. Raises: ArtifactError; an error of `DAMAGE`."""
    head = archive.json(PROGRAM)
    regions = [
        _region(archive, number, string(name), string(kind)) for number, (name, kind) in enumerate(head["regions"])
    ]
    functions = [_function(row, regions) for row in head["functions"]]
    names = names_in(head["constants"])
    stored = {name: archive.array(f"constants/{number}.npy") for number, name in enumerate(names)}
    late = {string(name): _late_bound(*facts) for name, *facts in head["late"]}
    if len({function.name for function in functions}) < len(functions) or len(stored) < len(names):
        raise ValueError("two functions or two constants have one name")
    if late.keys() & stored.keys():
        raise ValueError("a constant is bound late, and is there")
    constants: Mapping[str, Array] = stored
    if head.get("unpacked"):
        sizes = {name: array.size for name, array in stored.items()}
        sizes |= {name: math.prod(row.shape) for name, row in late.items()}
        constants = ProgramConstants(stored, dict(_read_unpacked(sizes, *row) for row in head["unpacked"]))
    table = {function.name: function for function in functions}
    ranges = {string(name): _range(*ends) for name, ends in head.get("ranges", {}).items()}
    return Program(string(head["name"]), table, constants, names_in(head["outputs"]), ranges), late


def _region(archive: Archive, number: int, name: str, kind: str) -> Region:
    part = _region_part(number, kind)
    if kind == PlanRegion.kind:
        return PlanRegion.from_json(name, archive.json(part))
    region = decoded_region(kind, archive.blob(part))
    return region if region.name == name else replace(region, name=name)


def decoded_region(kind: str, data: bytes) -> Region:
    """The region of `kind` whose `to_bytes` gave `data`. Raises: ArtifactError."""
    # Operators and front ends take longer to import than small networks to load: most executables need neither.
    region: Region
    if kind == "graph":
        region = importlib.import_module("retune.compiler.graph.graph_region").GraphRegion.from_bytes(data)
        return region
    if kind == SymbolicPlanRegion.kind:
        return SymbolicPlanRegion.from_bytes(data, decoded_region)
    if kind == "symbolic":
        module = importlib.import_module("retune.compiler.graph.symbolic_region")
        region = module.SymbolicRegion.from_bytes(data, _front_end_region)
        return region
    return _front_end_region(kind, data)


def _front_end_region(kind: str, data: bytes) -> Region:
    """The region of a front end, which is imported here. Raises: ArtifactError."""
    region: Region = importlib.import_module("retune.compiler.frontend.region").region_from_bytes(kind, data)
    return region


def _function(row: JsonObject, regions: Sequence[Region]) -> Function:
    body = tuple(_statement(regions, *fields) for fields in row["body"])
    return Function(string(row["name"]), _params(row["params"]), body, _params(row["results"]))


def _params(rows: Sequence[Sequence[object]]) -> tuple[Param, ...]:
    params = tuple(Param.from_json(*row) for row in rows)
    for param in params:
        if param.dtype is not None:
            number_type(param.dtype)  # NumPy would take nearly any text
        extents = [dim for dim in param.dims or () if isinstance(dim, int)]
        # A loop without iterations allocates zero rows of these dimensions.
        if any(type(dim) is not int or dim < 0 for dim in extents) or len(param.dims or ()) >= _MOST_DIMENSIONS:
            raise ValueError(f"{param!s:.80} has dimensions that no array has")
        if math.prod(max(extent, 1) for extent in extents) > _MOST_ELEMENTS:
            raise ValueError(f"{param!s:.80} is larger than any array")
    return params


def _statement(regions: Sequence[Region], kind: str, *fields: object) -> Statement:
    match kind, fields:
        case "call" | "host", (number, inputs, outputs):
            statement = Call if kind == "call" else HostCall
            return statement(_at(regions, number), names_in(inputs), names_in(outputs))
        case "branch", (condition, (then, first), (otherwise, second), outputs):
            yes, no = Arm(string(then), names_in(first)), Arm(string(otherwise), names_in(second))
            return Branch(string(condition), yes, no, names_in(outputs))
        case "loop", (count, condition, body, *lists):
            ends = [None if name is None else string(name) for name in (count, condition)]
            carried, captured, outputs, collected = map(names_in, lists)
            return Loop(ends[0], ends[1], string(body), carried, captured, outputs, collected)
    raise ValueError(f"{kind!r:.40} is no statement, or has other fields")


def _read_unpacked(
    sizes: Mapping[str, int], name: object, source: object, *rows: Sequence[object]
) -> tuple[str, Unpacked]:
    dims, order, extents, shape = (tuple(map(integer, row)) for row in rows)
    packing = Packing(dims, order, extents)
    if sizes[string(source)] != packing.size or math.prod(shape) != math.prod(extents or dims) or string(name) in sizes:
        raise ValueError(f"{name!s:.40} is not packed in {source!s:.40}")
    return string(name), Unpacked(string(source), packing, shape)


def _range(low: object, high: object) -> tuple[int, int]:
    if not 0 <= integer(low) <= integer(high):
        raise ValueError(f"{low} to {high} is no range")
    return integer(low), integer(high)


def _at(regions: Sequence[Region], number: object) -> Region:
    if type(number) is not int or not 0 <= number < len(regions):
        raise ValueError(f"there is no region {number!r:.40}")
    return regions[number]


def _late_bound(dtype: object, shape: Sequence[object], digest: object) -> LateBound:
    extents = tuple(extent for extent in shape if type(extent) is int)
    if len(extents) < len(shape):
        raise TypeError(f"{shape!r:.80} is no shape")
    return LateBound(string(dtype), extents, string(digest))
