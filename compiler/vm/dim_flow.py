"""Predicts dimensions of a program's values: for each value the numbers and symbols that it most likely has.

The symbolic graphs of regions are made for the predicted dimensions. Predictions may be wrong, unlike the facts of
`ShapeFlow`: guards detect a region that runs with other dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.graph.program import MAIN, Branch, Call, HostCall, Loop, Program, Statement, defines
from retune.compiler.graph.region import Dims, Region
from retune.compiler.graph.symbolic_region import SymbolicRegion

Known = tuple[Dims | None, ...]
"""Dimensions of values in order; None where not even the rank is known."""
_SCALARS: Known = ((), ())
"""Dimensions of the iteration number and the condition that a loop's body is called with."""
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
        """The region of `call` in a function, with symbolic dimensions where they can be."""
        return self._symbolic(call, self._values.get(function, {}))

    def _symbolic(self, call: Call, dims: Mapping[str, Dims | None]) -> Region:
        pairs = list(zip(call.region.inputs, call.inputs, strict=True))
        constants = self.program.constants
        known = {inner: dims[name] for inner, name in pairs if name in dims}
        fixed = {inner: name for inner, name in pairs if name not in dims and name in constants}
        key = (call.region.key, tuple(known.items()), tuple(fixed.items()))
        if key not in self._regions:
            arrays = {inner: constants[name] for inner, name in fixed.items()}
            self._regions[key] = call.region.symbolic(known, arrays, constants)
        return self._regions[key]

    def _results(self, name: str, args: Known) -> Known:
        """The dimensions of the results of a function for arguments of the dimensions `args`; those of the values
        inside it are noted.
        """
        function = self.program.functions[name]
        dims = {param.name: _narrow(arg, param.dims) for param, arg in zip(function.params, args, strict=True)}
        for statement in function.body:
            dims |= self._define(statement, dims)
        before = self._values.get(name, dims)
        # A function may have several callers: what is noted must hold for each of them.
        self._values[name] = {value: _common(known, before[value]) for value, known in dims.items()}
        return tuple(self._of(result.name, dims) for result in function.results)

    def _define(self, statement: Statement, dims: Mapping[str, Dims | None]) -> dict[str, Dims | None]:
        match statement:
            case Call():
                region = self._symbolic(statement, dims)
                declared = [result.dims for result in region.results]
                likely = region.likely_dims if isinstance(region, SymbolicRegion) else declared
                results = tuple(map(_narrow, likely, declared))
            case HostCall():
                results = tuple(result.dims for result in statement.region.results)
            case Branch(then=then, otherwise=otherwise):
                arms = [self._results(arm.function, self._all(arm.inputs, dims)) for arm in (then, otherwise)]
                results = tuple(map(_common, *arms))
            case Loop():
                carried = self._carry(statement, dims)
                results = (*carried, *(None for _ in statement.collected))
        return dict(zip(defines(statement), results, strict=True))

    def _carry(self, loop: Loop, dims: Mapping[str, Dims | None]) -> Known:
        """What a loop carries has the dimensions that no iteration changes."""
        before, captured = self._all(loop.carried, dims), self._all(loop.captured, dims)
        # A fixpoint: `_common` only loses dimensions, and there are finitely many, so it ends.
        while True:
            after = self._results(loop.body, (*_SCALARS, *before, *captured))[1 : 1 + len(before)]
            common = tuple(map(_common, before, after))
            if common == before:
                return before
            before = common

    def _all(self, names: Sequence[str], dims: Mapping[str, Dims | None]) -> Known:
        return tuple(self._of(name, dims) for name in names)

    def _of(self, name: str, dims: Mapping[str, Dims | None]) -> Dims | None:
        return dims[name] if name in dims else self.program.constants[name].shape


def _common(first: Dims | None, second: Dims | None) -> Dims | None:
    """The dimensions that two values have in common."""
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple(dim if dim == other else None for dim, other in zip(first, second, strict=True))


def _narrow(first: Dims | None, second: Dims | None) -> Dims | None:
    """The dimensions of a value by two descriptions; the second decides where both say something."""
    if first is None or second is None or len(first) != len(second):
        return second if first is None else first
    return tuple(dim if other is None else other for dim, other in zip(first, second, strict=True))
