"""`Program`: a network with control flow, or with shapes that are known only at run time. Its text is deterministic.

A program is a few functions. Their statements call *regions*: subgraphs without run-time control flow, each of which
yields one `Graph` for every set of input shapes that occurs.

    Program   = functions by name (`main` is the entry point), constants by name
    Function  = name, parameters, statements in order, results
    Statement = Call | HostCall | Branch | Loop
    Region    = name, inputs, constants, determining inputs, outputs; makes a `Graph` once shapes are known

In a function every name is defined once, by a parameter or a statement, and statements read only earlier names.
Functions are closed: outside values of a branch or a loop body are arguments.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.ir import Array, Graph, Value
from retune.compiler.graph.region import Param, Region

MAIN = "main"
_MOST_NESTED = 64
"""Functions call each other so deep: interpreters recurse, and ONNX files nest a third of this."""


@dataclass(frozen=True, slots=True)
class Call:
    """outputs = region(inputs)"""

    region: Region
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostCall:
    """outputs = region(inputs), by NumPy on the host, because the output shapes depend on the data."""

    region: Region
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of a branch: the name of a function and its arguments."""

    function: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """outputs = then if condition else otherwise. The condition has one element, a bool."""

    condition: str
    then: Arm
    otherwise: Arm
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Run `body` until `count` iterations are done or the condition is false.

    `body` is called with (iteration, condition, *carried, *captured) and returns (condition, *carried, *rows): the
    iteration number is an int64 and the condition a bool, both of rank 0. Shapes of carried values may change between
    iterations. `condition` is the first iteration's condition, the body returns the next iteration's. Without `count`
    only the condition ends the loop; without `condition` it is true before the first iteration.

    `outputs` are the carried values after the last iteration. Each of `collected` stacks one of the rows of all
    iterations along a new first axis. Without iterations it has zero rows, with the dimensions of the body's result, 0
    for unknown ones.
    """

    count: str | None
    condition: str | None
    body: str
    carried: tuple[str, ...]
    captured: tuple[str, ...]
    outputs: tuple[str, ...]
    collected: tuple[str, ...]


Statement = Call | HostCall | Branch | Loop


def reads(statement: Statement) -> tuple[str, ...]:
    match statement:
        case Call() | HostCall():
            names: tuple[str, ...] = statement.inputs
        case Branch():
            names = (statement.condition, *statement.then.inputs, *statement.otherwise.inputs)
        case Loop():
            ends = tuple(name for name in (statement.count, statement.condition) if name is not None)
            names = (*ends, *statement.carried, *statement.captured)
    return tuple(dict.fromkeys(names))


def defines(statement: Statement) -> tuple[str, ...]:
    return (*statement.outputs, *statement.collected) if isinstance(statement, Loop) else statement.outputs


def calls(statement: Statement) -> tuple[str, ...]:
    match statement:
        case Branch():
            return statement.then.function, statement.otherwise.function
        case Loop():
            return (statement.body,)
    return ()


@dataclass(frozen=True, slots=True)
class Function:
    """Statements over parameters.

    `results` names the returned values, each with the known part of its dtype and dimensions. A result is any name of
    the function or a constant of the program, and may repeat.
    """

    name: str
    params: tuple[Param, ...]
    body: tuple[Statement, ...]
    results: tuple[Param, ...]

    def constants(self) -> tuple[str, ...]:
        """The constants of the program that the function reads."""
        own = {param.name for param in self.params}.union(*map(defines, self.body))
        read = [name for statement in self.body for name in reads(statement)] + [result.name for result in self.results]
        regions = [s.region for s in self.body if isinstance(s, Call | HostCall)]
        inner = [name for region in regions for name in region.constants]
        return tuple(dict.fromkeys([name for name in read if name not in own] + inner))

    def __str__(self) -> str:
        results = ", ".join(map(str, self.results))
        lines = [f"function {self.name}({', '.join(map(str, self.params))}) -> ({results})"]
        return "\n".join([*lines, *(f"  {_text(statement)}" for statement in self.body)])


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A network with control flow or with shapes that are known only at run time. Compared by identity.

    `outputs` are the caller's names of the results of `main`. `constants` holds read-only arrays that regions and
    statements refer to by name; a function's own names shadow them. `ranges` bound symbols of the inputs, both ends
    included.
    """

    name: str
    functions: Mapping[str, Function]
    constants: Mapping[str, Array]
    outputs: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def main(self) -> Function:
        """The entry point; its parameters are the inputs of the network."""
        return self.functions[MAIN]

    @property
    def inputs(self) -> tuple[Param, ...]:
        return self.main.params

    def regions(self) -> tuple[Region, ...]:
        calls = (s for function in self.functions.values() for s in function.body if isinstance(s, Call | HostCall))
        return tuple({call.region.key: call.region for call in calls}.values())

    def static_graph(self) -> Graph | None:
        """The network as one graph, if all shapes are known and there is no run-time control flow."""
        shapes = {param.name: param.shape for param in self.inputs}
        known = {name: shape for name, shape in shapes.items() if shape is not None}
        match self.main.body:
            case (Call(region=region, inputs=names, outputs=outputs),) if len(known) == len(shapes):
                results = tuple(result.name for result in self.main.results)
                # A graph fixes names, order and shapes of its outputs: a region that renames or repeats them stays a
                # program.
                if region.determining or outputs != results or self.outputs != region.outputs:
                    return None
                if names != tuple(shapes) or region.inputs != names:
                    return None
                return region.specialize(known, {}, self.constants)
        return None

    def verify(self) -> None:
        """Check the structure. Raises: DefinitionError that names the function and the value at fault."""
        if MAIN not in self.functions:
            raise DefinitionError(f"program {self.name} has no function {MAIN}")
        if len(self.outputs) != len(self.main.results):
            raise DefinitionError(f"program {self.name}: {MAIN} gives {len(self.main.results)} results")
        for name, function in self.functions.items():
            if name != function.name:
                raise DefinitionError(f"program {self.name}: function {function.name} is filed as {name}")
            self._verify_function(function)
        heights: dict[str, int] = {}
        for name in self.functions:
            self._verify_nesting(name, (), heights)

    def _verify_nesting(self, name: str, callers: tuple[str, ...], heights: dict[str, int]) -> int:
        """How deep calls nest from a function on; `heights` keeps this. Raises: DefinitionError for recursion."""
        if name not in heights and name not in callers:
            called = [inner for statement in self.functions[name].body for inner in calls(statement)]
            above = (*callers, name)
            heights[name] = 1 + max((self._verify_nesting(inner, above, heights) for inner in called), default=0)
        if name in callers or len(callers) + heights[name] > _MOST_NESTED:
            raise DefinitionError(f"program {self.name}: calls of {name} nest more than {_MOST_NESTED} deep")
        return heights[name]

    def _verify_function(self, function: Function) -> None:
        where = f"program {self.name}, function {function.name}"
        defined: set[str] = set()
        for param in function.params:
            if param.name in defined:
                raise DefinitionError(f"{where}: two parameters have the name {param.name}")
            defined.add(param.name)
        for statement in function.body:
            for name in reads(statement):
                if name not in defined and name not in self.constants:
                    raise DefinitionError(f"{where}: '{_text(statement)}' reads {name} before it is defined")
            for name in defines(statement):
                if name in defined:
                    raise DefinitionError(f"{where}: '{_text(statement)}' defines {name} a second time")
                defined.add(name)
            self._verify_arity(where, statement)
        for result in function.results:
            if result.name not in defined and result.name not in self.constants:
                raise DefinitionError(f"{where}: nothing computes its result {result.name}")

    def _verify_arity(self, where: str, statement: Statement) -> None:
        for what, wanted, count in self._arities(statement):
            if wanted != count:
                raise DefinitionError(f"{where}: '{_text(statement)}' has {count} of {what}, which are {wanted}")

    def _arities(self, statement: Statement) -> Iterator[tuple[str, int, int]]:
        match statement:
            case Call() | HostCall():
                region = statement.region
                yield f"the inputs of {region.name}", len(region.inputs), len(statement.inputs)
                yield f"the outputs of {region.name}", len(region.outputs), len(statement.outputs)
                missing = [name for name in region.constants if name not in self.constants]
                yield f"the constants of {region.name}", len(region.constants), len(region.constants) - len(missing)
            case Branch():
                for arm in (statement.then, statement.otherwise):
                    function = self._callee(arm.function)
                    yield f"the parameters of {arm.function}", len(function.params), len(arm.inputs)
                    yield f"the results of {arm.function}", len(function.results), len(statement.outputs)
            case Loop():
                function = self._callee(statement.body)
                passed = 2 + len(statement.carried) + len(statement.captured)
                yield f"the parameters of {statement.body}", len(function.params), passed
                yield f"the results of {statement.body}", len(function.results), 1 + len(defines(statement))
                yield "what is carried", len(statement.carried), len(statement.outputs)

    def _callee(self, name: str) -> Function:
        if name not in self.functions:
            raise DefinitionError(f"program {self.name} has no function {name}")
        return self.functions[name]

    def __str__(self) -> str:
        constants = [f"const {Value(name, array.shape, array.dtype.name)}" for name, array in self.constants.items()]
        head = f"program {self.name} -> ({', '.join(self.outputs)})"
        return "\n".join([head, *constants, *map(str, self.functions.values())])


def _text(statement: Statement) -> str:
    outputs = ", ".join(defines(statement))
    match statement:
        case Call() | HostCall():
            region = statement.region
            fixed = dict(zip(region.inputs, statement.inputs, strict=False))
            words = [", ".join(statement.inputs)]
            words += [f"constants {', '.join(region.constants)}"] if region.constants else []
            words += [f"by {', '.join(fixed[name] for name in region.determining)}"] if region.determining else []
            verb = "call" if isinstance(statement, Call) else "host"
            return f"{outputs} = {verb} {region.name}({'; '.join(words)})"
        case Branch():
            arms = [f"{arm.function}({', '.join(arm.inputs)})" for arm in (statement.then, statement.otherwise)]
            return f"{outputs} = {arms[0]} if {statement.condition} else {arms[1]}"
        case Loop():
            passed = [f"{', '.join(statement.carried)}"]
            passed += [f"captured {', '.join(statement.captured)}"] if statement.captured else []
            ends = "" if statement.count is None else f" for {statement.count} iterations"
            ends += "" if statement.condition is None else f" while {statement.condition}"
            return f"{outputs} = loop{ends} {statement.body}({'; '.join(passed)})"
