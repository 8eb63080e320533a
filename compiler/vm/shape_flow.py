"""Static shape inference of a program: the shapes known before it runs, and graphs of regions with such shapes.

An inferred shape holds in every run with the input shapes the function was analyzed for. A value that a loop carries
has a shape if no iteration changes it: the analysis starts from the shape before the first iteration and drops whatever
differs after one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.core.errors import ShapeMismatchError, UnknownValueError
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.program import Branch, Call, Function, HostCall, Loop, Program, Statement, defines
from retune.compiler.graph.region import Shape

Shapes = tuple[Shape | None, ...]
"""Shapes of values in order; None for an unknown shape."""
_Key = tuple[str, tuple[tuple[str, Shape], ...], tuple[tuple[str, str], ...]]
"""A region, the shapes of its inputs, and which inputs are constants."""
_SCALARS: Shapes = ((), ())
"""Shapes of the iteration number and the condition that a loop's body is called with."""


@dataclass(slots=True)
class ShapeFlow:
    """Shape inference of one program. Results are cached, because lowering asks for them again."""

    program: Program
    _results: dict[tuple[str, Shapes], Shapes] = field(default_factory=dict)
    _graphs: dict[_Key, Graph | ShapeMismatchError | None] = field(default_factory=dict)

    def params(self, function: Function, args: Shapes | None = None) -> dict[str, Shape | None]:
        """The shapes of a function's parameters: those of `args`, else those that the function declares."""
        declared = [param.shape for param in function.params]
        pairs = zip(declared if args is None else args, declared, strict=True)
        shapes = [own if arg is None else arg for arg, own in pairs]
        return {param.name: shape for param, shape in zip(function.params, shapes, strict=True)}

    def results(self, name: str, args: Shapes) -> Shapes:
        """The shapes of the results of the function `name` for arguments of the shapes `args`."""
        key = (name, args)
        if key not in self._results:
            function = self.program.functions[name]
            shapes = self.params(function, args)
            for statement in function.body:
                shapes |= self.defined_shapes(statement, shapes)
            self._results[key] = tuple(self._shape(result.name, shapes) for result in function.results)
        return self._results[key]

    def defined_shapes(self, statement: Statement, shapes: Mapping[str, Shape | None]) -> dict[str, Shape | None]:
        """The shapes of the values that `statement` defines, for values of `shapes`."""
        results: Sequence[Shape | None]
        match statement:
            case Call():
                try:
                    graph = self.graph(statement, shapes)
                except ShapeMismatchError:  # it may never be called
                    graph = None
                known = statement.region.results if graph is None else graph.output_values()
                results = [value.shape for value in known]
            case HostCall():
                results = [result.shape for result in statement.region.results]
            case Branch(then=then, otherwise=otherwise):
                arms = [self.results(arm.function, self.of(arm.inputs, shapes)) for arm in (then, otherwise)]
                results = _common(*arms)
            case Loop():
                results = (*self.carried_shapes(statement, shapes), *(None for _ in statement.collected))
        return dict(zip(defines(statement), results, strict=True))

    def carried_shapes(self, loop: Loop, shapes: Mapping[str, Shape | None]) -> Shapes:
        """The shapes of what a loop carries, in every iteration and after the last."""
        before, captured = self.of(loop.carried, shapes), self.of(loop.captured, shapes)
        # A fixpoint over the lattice known -> unknown: each pass loses at least one of finitely many shapes.
        while True:
            after = self.results(loop.body, (*_SCALARS, *before, *captured))[1 : 1 + len(before)]
            common = _common(before, after)
            if common == before:
                return before
            before = common

    def iteration(self, loop: Loop, shapes: Mapping[str, Shape | None]) -> Shapes:
        """The shapes of the arguments of a loop's body, in every iteration."""
        return (*_SCALARS, *self.carried_shapes(loop, shapes), *self.of(loop.captured, shapes))

    def of(self, names: Sequence[str], shapes: Mapping[str, Shape | None]) -> Shapes:
        """The shapes of values and constants."""
        return tuple(self._shape(name, shapes) for name in names)

    def graph(self, call: Call, shapes: Mapping[str, Shape | None]) -> Graph | None:
        """The graph of a region, when the shapes of all inputs are known, and no values of them matter; else None.

        Raises: ShapeMismatchError when these shapes do not fit.
        """
        region, constants = call.region, self.program.constants
        pairs = list(zip(region.inputs, call.inputs, strict=True))
        fixed = {inner: name for inner, name in pairs if name not in shapes}
        known = {inner: shape for inner, name in pairs if (shape := self._shape(name, shapes)) is not None}
        if len(known) < len(pairs) or any(inner not in fixed for inner in region.determining):
            return None
        key = (region.key, tuple(sorted(known.items())), tuple(sorted(fixed.items())))
        if key not in self._graphs:
            try:
                values = {inner: constants[name] for inner, name in fixed.items()}
                self._graphs[key] = region.specialize(known, values, constants)
            except UnknownValueError:
                self._graphs[key] = None
            except ShapeMismatchError as error:
                # Errors are kept too: finding one costs an import of the region, and lowering asks again.
                self._graphs[key] = error
        graph = self._graphs[key]
        if isinstance(graph, ShapeMismatchError):
            raise graph
        return graph

    def _shape(self, name: str, shapes: Mapping[str, Shape | None]) -> Shape | None:
        return shapes[name] if name in shapes else self.program.constants[name].shape


def _common(first: Shapes, second: Shapes) -> Shapes:
    return tuple(shape if shape == other else None for shape, other in zip(first, second, strict=True))
