"""Lowers a program for a target to the program, kernels and constants of an executable.

A call of a region whose shapes are known becomes a call of a `PlanRegion`, which is compiled here. Any other region,
and any for a GPU, stays as it is, with symbolic dimensions where it can have them, and is compiled when it runs and its
shapes are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from retune.compiler.core.errors import ShapeMismatchError
from retune.compiler.core.packing import Packing
from retune.compiler.core.target import Target
from retune.compiler.graph.ir import Array
from retune.compiler.graph.program import MAIN, Arm, Branch, Call, Function, HostCall, Loop, Program, Statement, reads
from retune.compiler.graph.region import Region, Shape
from retune.compiler.graph.symbolic_region import SymbolicRegion
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.schedule.task import SearchTask
from retune.compiler.vm.compile_symbolic import attempt, compile_symbolic
from retune.compiler.vm.dim_flow import DimFlow
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.program_constants import equal_constant, store_packed
from retune.compiler.vm.shape_flow import ShapeFlow, Shapes
from retune.compiler.vm.subgraph import TunedPrograms, compile_subgraph
from retune.compiler.vm.symbolic_plan import SymbolicPlanRegion

_Key = tuple[str, bool, tuple[tuple[str, str], ...]]
"""A region, whether it is for the host, and which of its inputs are constants."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a program was made into."""

    program: Program
    kernels: tuple[KernelArtifact, ...]
    coverage: tuple[KernelRow, ...]


SymbolicTask = tuple[SearchTask, int, Mapping[str, str]]
"""A task, how often a run calls its kernel, and the symbols of the program by those of the task."""


@dataclass(slots=True)
class Lowering:
    """A program while it is lowered."""

    program: Program
    target: Target
    threads: int
    tuned: TunedPrograms
    per_shape: dict[str, str] = field(default_factory=dict)
    """Regions, and groups of their nodes, that are compiled for each shape, and why."""
    limits: dict[str, str] = field(default_factory=dict)
    """What sizes must fulfill, by region; for others it is compiled for each shape."""
    tasks: list[SymbolicTask] = field(default_factory=list)
    """The tasks of kernels with symbolic extents that are worth tuning."""
    _flow: ShapeFlow = field(init=False)
    _dims: DimFlow = field(init=False)
    _kernels: dict[str, KernelArtifact] = field(default_factory=dict)
    _coverage: dict[str, KernelRow] = field(default_factory=dict)
    _functions: dict[str, Function] = field(default_factory=dict)
    """What was lowered, by its new name."""
    _titles: dict[tuple[str, Shapes | None], str] = field(default_factory=dict)
    """The new names, by old name and shapes of arguments."""
    _constants: dict[str, Array] = field(default_factory=dict)
    """Those of plans."""
    _constant_names: dict[int, str] = field(default_factory=dict)
    _regions: dict[_Key, Region] = field(default_factory=dict)
    _region_names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._flow, self._dims = ShapeFlow(self.program), DimFlow(self.program)

    def lower(self) -> Lowered:
        """Lower all that `main` may call. Raises: what compiling a graph raises."""
        self._function(MAIN, None)
        used = {name for function in self._functions.values() for name in function.constants()}
        known = {**self._constants, **self.program.constants}
        constants = store_packed({name: array for name, array in known.items() if name in used}, *self._find_packings())
        program = replace(self.program, functions=self._functions, constants=constants)
        return Lowered(program, tuple(self._kernels.values()), tuple(self._coverage.values()))

    def _find_packings(self) -> tuple[dict[str, Packing], set[str]]:
        """The packings of constants that symbolic plans read, and the names of all values that anything reads but a
        region for shapes that no plan takes.
        """
        packings: dict[str, Packing] = {}
        read: set[str] = set()
        for function in self._functions.values():
            read.update(result.name for result in function.results)
            for statement in function.body:
                read.update(reads(statement))
                region = statement.region if isinstance(statement, Call | HostCall) else None
                if isinstance(region, SymbolicPlanRegion):
                    read.update(region.buffers.values())
                    packings |= region.packings(self._kernels)
                elif region is not None:
                    read.update(region.constants)
        return packings, read

    def _function(self, name: str, shapes: Shapes | None) -> str:
        """The new name of a function that is called with arguments of these shapes."""
        # One function for each set of argument shapes, as monomorphization makes one for each set of types.
        if (name, shapes) not in self._titles:
            function = self.program.functions[name]
            title = _free(name, self._functions)
            self._titles[name, shapes] = title
            self._functions[title] = function  # keeps the name free of others while the body is lowered
            self._functions[title] = self._body(function, title, shapes)
        return self._titles[name, shapes]

    def _body(self, function: Function, title: str, given: Shapes | None) -> Function:
        shapes = self._flow.params(function, given)
        body = []
        for statement in function.body:
            body.append(self._statement(function.name, statement, shapes))
            shapes |= self._flow.defined_shapes(statement, shapes)
        return replace(function, name=title, body=tuple(body))

    def _statement(self, function: str, statement: Statement, shapes: Mapping[str, Shape | None]) -> Statement:
        match statement:
            case Call():
                network = self._static(function, statement, shapes)
                if network is not None:
                    return self._bind_plan(statement, network)
                return replace(statement, region=self._shared_region(function, statement, shapes))
            case HostCall():
                return replace(statement, region=self._shared_region(function, statement, shapes))
            case Branch(then=then, otherwise=otherwise):
                return replace(statement, then=self._arm(then, shapes), otherwise=self._arm(otherwise, shapes))
            case Loop():
                return replace(statement, body=self._function(statement.body, self._flow.iteration(statement, shapes)))

    def _arm(self, arm: Arm, shapes: Mapping[str, Shape | None]) -> Arm:
        return replace(arm, function=self._function(arm.function, self._flow.of(arm.inputs, shapes)))

    def _static(self, function: str, call: Call, shapes: Mapping[str, Shape | None]) -> CompiledNetwork | None:
        """The region, compiled, when all its shapes are known and it is for a CPU, whose memory the machine has;
        else None.

        Raises: ShapeMismatchError when they do not fit, and the region is called in every run.
        """
        try:
            graph = self._flow.graph(call, shapes)
        except ShapeMismatchError:
            if function == MAIN:
                raise
            return None
        if graph is None or not self.target.traits.uses_host_memory:
            return None
        network = compile_subgraph(graph, self.target, self.threads, self.tuned)
        self._add(network.kernels, network.coverage)
        return network

    def _bind_plan(self, call: Call, network: CompiledNetwork) -> Call:
        buffers = {number: self._constant(array) for number, array in network.constants.items()}
        name = self._name(call.region.name)
        region = PlanRegion.of(name, replace(network.plan, name=name), buffers)
        sources = dict(zip(call.region.inputs, call.inputs, strict=True))
        return Call(region, tuple(sources[name] for name in region.inputs), call.outputs)

    def _constant(self, array: Array) -> str:
        """The name of a constant of plans."""
        if id(array) not in self._constant_names:
            # A weight that kernels read as it is has the name that it has in the program.
            name = equal_constant(array, self.program.constants)
            name = name or _free(f"const_{len(self._constants)}", self.program.constants)
            self._constant_names[id(array)] = name
            self._constants[name] = array  # which keeps it alive, and its id its own
        return self._constant_names[id(array)]

    def _shared_region(self, function: str, call: Call | HostCall, shapes: Mapping[str, Shape | None]) -> Region:
        """The region of a call that is compiled later: one for all calls of it with the same constants."""
        region = self._dims.symbolic(function, call) if isinstance(call, Call) else call.region
        pairs = zip(region.inputs, call.inputs, strict=True)
        fixed = tuple((inner, name) for inner, name in pairs if name not in shapes)
        key = (region.key, isinstance(call, HostCall), fixed)
        if key not in self._regions:
            region = replace(region, name=self._name(region.name))
            if isinstance(region, SymbolicRegion):
                region = self._compile_for_all_shapes(region, dict(fixed))
            elif isinstance(call, Call):
                self.per_shape[region.name] = "nothing is known of its shapes, or no graph is right for many of them"
            self._regions[key] = region
        return self._regions[key]

    def _compile_for_all_shapes(self, region: SymbolicRegion, fixed: Mapping[str, str]) -> Region:
        """The region compiled for all shapes, unless records are used, which are of known shapes; else the region."""
        if self.tuned.best or not self.target.traits.uses_host_memory:
            self.per_shape[region.name] = "records are for known shapes" if self.tuned.best else "it is for a GPU"
            return region
        known = self.program.constants
        arrays = {name: known[name] for name in region.constants} | {
            inner: known[name] for inner, name in fixed.items()
        }
        network = attempt(
            f"region {region.name}",
            lambda: compile_symbolic(region, arrays, self.target, self.threads, self._constant, self.tuned),
        )
        if isinstance(network, Unsupported):
            self.per_shape[region.name] = network.reason
            return region
        self.per_shape |= network.region.reasons
        limits = network.limits(self.program.ranges)
        if limits:
            self.limits[network.region.name] = limits
        self._add(network.kernels, network.coverage)
        self.tasks += [(task, weight, network.symbols) for task, weight in network.tasks]
        return network.region

    def _add(self, kernels: Sequence[KernelArtifact], coverage: Sequence[KernelRow]) -> None:
        self._kernels |= {kernel.name: kernel for kernel in kernels}
        for row in coverage:
            known = self._coverage.get(row.name)
            self._coverage[row.name] = row if known is None else replace(row, weight=row.weight + known.weight)

    def _name(self, title: str) -> str:
        """A name that no other region has."""
        name = _free(title, self._region_names)
        self._region_names.add(name)
        return name


def _free(title: str, taken: Mapping[str, object] | set[str]) -> str:
    name, count = title, 0
    while name in taken:
        count += 1
        name = f"{title}.{count}"
    return name
