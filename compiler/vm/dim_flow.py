"""Follows dimensions through a program: for each value the numbers and symbols that it most likely has.

The symbolic graphs of regions are made for these. They are no facts, as those of `ShapeFlow` are: a region that meets
other dimensions when it runs has guards that say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.graph.program import MAIN, Branch, Call, HostCall, Loop, Program, Statement, defines
from retune.compiler.graph.region import Dims, Region
from retune.compiler.graph.symbolic_region import SymbolicRegion

Known = tuple[Dims | None, ...]
"""Of values in order; None where not even the rank is known."""
_SCALARS: Known = ((), ())
"""Of the iteration number and the condition that a loop's body is called with."""
_Key = tuple[str, tuple[tuple[str, Dims | None], ...], tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class DimFlow:
    """One program, followed from `main` on."""

    program: Program
    _values: dict[str, dict[str, Dims | None]] = field(default_factory=dict)
    _regions: dict[_Key, Region] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._results(MAIN, tuple(param.dims for param in self.program.inputs))

    def symbolic(self, function: str, call: Call) -> Region:
        """The region of a call in a function, with symbolic dimensions where they can be."""
        return self._symbolic(call, self._values.get(function, {}))

    def _symbolic(self, call: Call, dims: Mapping[str, Dims | None]) -> Region:
        pairs = list(zip(call.region.inputs, call.inputs, strict=True))
        constants = self.program.constants
        known = {mine: dims[name] for mine, name in pairs if name in dims}
        fixed = {mine: name for mine, name in pairs if name not in dims and name in constants}
        key = (call.region.key, tuple(known.items()), tuple(fixed.items()))
        if key not in self._regions:
            arrays = {mine: constants[name] for mine, name in fixed.items()}
            self._regions[key] = call.region.symbolic(known, arrays, constants)
        return self._regions[key]

    def _results(self, name: str, given: Known) -> Known:
        """The dimensions of the results of a function that is called with these; what is inside it is noted."""
        function = self.program.functions[name]
        pairs = zip(function.params, given, strict=True)
        dims = {param.name: _narrowed(one, param.dims) for param, one in pairs}
        for statement in function.body:
            dims |= self._defined(statement, dims)
        before = self._values.get(name, dims)
        # A function may have several callers: what is noted must hold for each of them.
        self._values[name] = {value: _common(one, before[value]) for value, one in dims.items()}
        return tuple(self._of(result.name, dims) for result in function.results)

    def _defined(self, statement: Statement, dims: Mapping[str, Dims | None]) -> dict[str, Dims | None]:
        match statement:
            case Call():
                region = self._symbolic(statement, dims)
                told = [each.dims for each in region.results]
                found = region.likely_dims if isinstance(region, SymbolicRegion) else told
                results = tuple(_narrowed(one, other) for one, other in zip(found, told, strict=True))
            case HostCall():
                results = tuple(each.dims for each in statement.region.results)
            case Branch():
                one, other = (
                    self._results(arm.function, self._all(arm.inputs, dims))
                    for arm in (statement.then, statement.otherwise)
                )
                results = tuple(map(_common, one, other))
            case Loop():
                carried = self._carried(statement, dims)
                results = (*carried, *(None,) * len(statement.collected))
        return dict(zip(defines(statement), results, strict=True))

    def _carried(self, loop: Loop, dims: Mapping[str, Dims | None]) -> Known:
        """What a loop carries has the dimensions that no iteration changes."""
        held, captured = self._all(loop.carried, dims), self._all(loop.captured, dims)
        # A fixpoint: `_common` only loses dimensions, and there are finitely many, so it ends.
        while True:
            after = self._results(loop.body, (*_SCALARS, *held, *captured))[1 : 1 + len(held)]
            kept = tuple(map(_common, held, after))
            if kept == held:
                return held
            held = kept

    def _all(self, names: Sequence[str], dims: Mapping[str, Dims | None]) -> Known:
        return tuple(self._of(name, dims) for name in names)

    def _of(self, name: str, dims: Mapping[str, Dims | None]) -> Dims | None:
        return dims[name] if name in dims else self.program.constants[name].shape


def _common(one: Dims | None, other: Dims | None) -> Dims | None:
    """What two values have in common."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(dim if dim == twin else None for dim, twin in zip(one, other, strict=True))


def _narrowed(one: Dims | None, other: Dims | None) -> Dims | None:
    """What is known of a value by both."""
    if one is None or other is None or len(one) != len(other):
        return other if one is None else one
    return tuple(dim if twin is None else twin for dim, twin in zip(one, other, strict=True))
