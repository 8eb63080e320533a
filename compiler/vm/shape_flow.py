"""Static shape inference of a program: the shapes known before it runs, and graphs of regions with such shapes.

An inferred shape holds in every run with the input shapes the function was analyzed for. A value that a loop carries
has a shape if no iteration changes it: the analysis starts from the shape before the first iteration and drops whatever
differs after one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.errors import ShapeMismatchError, UnknownValueError
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.program import Arm, Branch, Call, Function, HostCall, Loop, Program, Statement, defines
from retune.compiler.graph.region import Shape

Shapes = tuple[Shape | None, ...]
"""Of values in order; None for one that is not known."""
_Key = tuple[str, tuple[tuple[str, Shape], ...], tuple[tuple[str, str], ...]]
"""A region, the shapes of what it reads, and which of that are constants."""
_SCALARS: Shapes = ((), ())
"""Of the iteration and the condition that a loop's body is called with."""


@dataclass(slots=True)
class ShapeFlow:
    """Shape inference of one program. Results are cached, because lowering asks for them again."""

    program: Program
    _results: dict[tuple[str, Shapes], Shapes] = field(default_factory=dict)
    _graphs: dict[_Key, Graph | ShapeMismatchError | None] = field(default_factory=dict)

    def params(self, function: Function, given: Shapes | None = None) -> dict[str, Shape | None]:
        """The shapes of a function's parameters: those that are given, else those that it says itself."""
        own = [param.shape for param in function.params]
        shapes = own if given is None else [one or told for one, told in zip(given, own, strict=True)]
        return {param.name: shape for param, shape in zip(function.params, shapes, strict=True)}

    def results(self, name: str, given: Shapes) -> Shapes:
        """The shapes of the results of a function that is called with these."""
        key = (name, given)
        if key not in self._results:
            function = self.program.functions[name]
            shapes = self.params(function, given)
            for statement in function.body:
                shapes |= self.defined(statement, shapes)
            self._results[key] = tuple(self._shape(result.name, shapes) for result in function.results)
        return self._results[key]

    def defined(self, statement: Statement, shapes: Mapping[str, Shape | None]) -> dict[str, Shape | None]:
        """The shapes of what a statement defines, of those of what it reads."""
        match statement:
            case Call():
                try:
                    graph = self.graph(statement, shapes)
                except ShapeMismatchError:  # it may never be called
                    graph = None
                if graph is not None:
                    return dict(zip(statement.outputs, (value.shape for value in graph.output_values()), strict=True))
                return dict(zip(statement.outputs, (each.shape for each in statement.region.results), strict=True))
            case HostCall():
                return dict(zip(statement.outputs, (each.shape for each in statement.region.results), strict=True))
            case Branch():
                arms = [self.results(arm.function, self.of(arm.inputs, shapes)) for arm in _arms(statement)]
                pairs = zip(statement.outputs, *arms, strict=True)
                return {name: one if one == other else None for name, one, other in pairs}
            case Loop():
                carried = dict(zip(statement.outputs, self.carried(statement, shapes), strict=True))
                return {name: carried.get(name) for name in defines(statement)}

    def carried(self, loop: Loop, shapes: Mapping[str, Shape | None]) -> Shapes:
        """The shapes of what a loop carries, in every iteration and after the last."""
        held, captured = self.of(loop.carried, shapes), self.of(loop.captured, shapes)
        # A fixpoint over the lattice known -> unknown: each pass loses at least one of finitely many shapes.
        while True:
            after = self.results(loop.body, (*_SCALARS, *held, *captured))[1 : 1 + len(held)]
            kept = tuple(one if one == other else None for one, other in zip(held, after, strict=True))
            if kept == held:
                return held
            held = kept

    def iteration(self, loop: Loop, shapes: Mapping[str, Shape | None]) -> Shapes:
        """The shapes of the arguments of a loop's body, in every iteration."""
        return (*_SCALARS, *self.carried(loop, shapes), *self.of(loop.captured, shapes))

    def of(self, names: Sequence[str], shapes: Mapping[str, Shape | None]) -> Shapes:
        """The shapes of values and constants."""
        return tuple(self._shape(name, shapes) for name in names)

    def graph(self, call: Call, shapes: Mapping[str, Shape | None]) -> Graph | None:
        """The graph of a region, when the shapes of all that it reads are known, and their values do not matter.

        Raises: ShapeMismatchError when these shapes do not fit.
        """
        region, constants = call.region, self.program.constants
        pairs = list(zip(region.inputs, call.inputs, strict=True))
        fixed = {mine: name for mine, name in pairs if name not in shapes}
        known = {mine: shape for mine, name in pairs if (shape := self._shape(name, shapes)) is not None}
        if len(known) < len(pairs) or any(mine not in fixed for mine in region.determining):
            return None
        key = (region.key, tuple(sorted(known.items())), tuple(sorted(fixed.items())))
        if key not in self._graphs:
            try:
                values = {mine: constants[name] for mine, name in fixed.items()}
                self._graphs[key] = region.specialize(known, values, constants)
            except UnknownValueError:
                self._graphs[key] = None
            except ShapeMismatchError as error:
                # Errors are kept too: finding one costs an import of the region, and lowering asks again.
                self._graphs[key] = error
        found = self._graphs[key]
        if isinstance(found, ShapeMismatchError):
            raise found
        return found

    def _shape(self, name: str, shapes: Mapping[str, Shape | None]) -> Shape | None:
        return shapes[name] if name in shapes else self.program.constants[name].shape


def _arms(branch: Branch) -> tuple[Arm, Arm]:
    return branch.then, branch.otherwise
