"""Lowers a program for a target to the image and the library of an executable.

A region whose shapes are known is compiled here, and is called by `run_plan`. Any other, and any for a GPU, is called
by `run_region`, and compiled when it runs and its shapes are known. Branches become jumps, loops a jump back with a
counter, the function of a loop's body a closure over what it takes from around it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from retune.compiler.errors import ShapeMismatchError
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.graph.ir import Array, Graph
from retune.compiler.graph.program import (
    Arm,
    Branch,
    Call,
    Function,
    HostCall,
    Loop,
    Program,
    Statement,
    defines,
    reads,
)
from retune.compiler.graph.region import Region
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.target import Target
from retune.compiler.vm.dim_flow import DimFlow
from retune.compiler.vm.instructions import (
    AllocADT,
    AllocClosure,
    GetField,
    Invoke,
    InvokeClosure,
    Move,
    Ret,
    RunPlan,
    RunRegion,
)
from retune.compiler.vm.library import StoredRegion
from retune.compiler.vm.loop_code import LoopCode
from retune.compiler.vm.program_image import HOST, MAIN, PLAN, REGION, ProgramImage, VMFunction
from retune.compiler.vm.shape_flow import ShapeFlow, Shapes
from retune.compiler.vm.subgraph import TunedPrograms, compile_subgraph
from retune.compiler.vm.values import TUPLE
from retune.compiler.vm.writer import FunctionWriter, Tables


@dataclass(slots=True)
class Lowered:
    """What a program was made into."""

    image: ProgramImage
    kernels: tuple[KernelArtifact, ...]
    regions: Mapping[str, StoredRegion]
    arrays: Mapping[str, Array]
    coverage: tuple[KernelRow, ...]


@dataclass(slots=True)
class Lowering:
    """A program while it is lowered."""

    program: Program
    target: Target
    threads: int
    tuned: TunedPrograms
    tables: Tables = field(default_factory=Tables)
    kernels: dict[str, KernelArtifact] = field(default_factory=dict)
    regions: dict[str, StoredRegion] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    coverage: dict[str, KernelRow] = field(default_factory=dict)
    flow: ShapeFlow = field(init=False)
    dims: DimFlow = field(init=False)
    _functions: dict[tuple[str, int, Shapes | None], int] = field(default_factory=dict)
    _region_names: dict[tuple[str, tuple[tuple[str, str], ...]], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flow, self.dims = ShapeFlow(self.program), DimFlow(self.program)

    def lowered(self) -> Lowered:
        """Lower all that `main` may call. Raises: what compiling a graph raises; DefinitionError for a loop that
        collects what has no known dtype.
        """
        self.function(MAIN, 0)
        image = self.tables.image()
        image.verify()
        kernels, coverage = tuple(self.kernels.values()), tuple(self.coverage.values())
        return Lowered(image, kernels, self.regions, self.arrays, coverage)

    def function(self, name: str, captured: int, given: Shapes | None = None) -> int:
        """The number of a function that is called with arguments of these shapes. Its last `captured` parameters come
        first, as those of a closure do.
        """
        # One function for each set of argument shapes, as monomorphization makes one for each set of types.
        key = (name, captured, given)
        if key not in self._functions:
            others = sum(other == name for other, _, _ in self._functions)
            title = f"{name}.{others}" if others else name
            # Reserved before the body is lowered: the functions that it calls take the numbers after this one.
            self._functions[key] = number = len(self.tables.functions)
            self.tables.functions.append(None)
            function = self.program.functions[name]
            self.tables.functions[number] = FunctionLowering(self, title, function, captured, given).done()
        return self._functions[key]

    def compiled(self, graph: Graph) -> CompiledNetwork:
        """A graph, compiled; its kernels are noted."""
        network = compile_subgraph(graph, self.target, self.threads, self.tuned)
        self.kernels |= {kernel.name: kernel for kernel in network.kernels}
        for one in network.coverage:
            known = self.coverage.get(one.name)
            self.coverage[one.name] = one if known is None else replace(one, weight=one.weight + known.weight)
        return network

    def plan(self, network: CompiledNetwork, title: str) -> int:
        """The primitive of a network of known shapes."""
        name = self._free_name(title)
        self.regions[name] = StoredRegion(PLAN, network.plan.dumps().encode())
        constants = {number: self.tables.constant(array) for number, array in network.constants.items()}
        pairs = " ".join(f"{buffer}:{constant}" for buffer, constant in constants.items())
        return self.tables.primitive(name, {"kind": PLAN, "region": name, "constants": pairs})

    def region(self, region: Region, fixed: Mapping[str, str], kind: str) -> int:
        """The primitive of a region that is compiled later; `fixed` are inputs that are constants of the program."""
        key = (f"{region.key} {kind}", tuple(sorted(fixed.items())))
        if key not in self._region_names:
            self._region_names[key] = name = self._free_name(region.name)
            self.regions[name] = StoredRegion(region.kind, region.to_bytes(), dict(fixed))
            for source in (*region.constants, *fixed.values()):
                self.arrays[source] = self.program.constants[source]
        name = self._region_names[key]
        return self.tables.primitive(name, {"kind": kind, "region": name})

    def _free_name(self, title: str) -> str:
        name, count = title, 0
        while name in self.regions:
            count += 1
            name = f"{title}_{count}"
        return name


class FunctionLowering:
    """One function while it is lowered: registers by name, and what is known of the values."""

    def __init__(self, lowering: Lowering, title: str, function: Function, captured: int, given: Shapes | None) -> None:
        # InvokeClosure passes captured values before arguments, as TVM's does.
        params = function.params[len(function.params) - captured :], function.params[: len(function.params) - captured]
        ordered = [param for part in params for param in part]
        self._lowering = lowering
        self._program = lowering.program
        self._function = function
        self.writer = FunctionWriter(lowering.tables, title, [param.name for param in ordered])
        self._registers = {param.name: number for number, param in enumerate(ordered)}
        self._flow = lowering.flow
        self._shapes = self._flow.params(function, given)

    def done(self) -> VMFunction:
        """Lower the body and the results."""
        kept = {result.name for result in self._function.results}
        last = {name: number for number, each in enumerate(self._function.body) for name in reads(each)}
        for number, statement in enumerate(self._function.body):
            self._statement(statement)
            if number + 1 == len(self._function.body):
                break  # the frame ends with the next instruction, and all that it holds
            # Liveness in straight-line code: a value dies after its last reader, and its memory goes back to the pool.
            dead = [name for name in (*reads(statement), *defines(statement)) if last.get(name, -1) <= number]
            for name in dict.fromkeys(dead):
                if name in self._registers and name not in kept:
                    self.writer.kill(self._registers.pop(name))
        results = [self.register(result.name) for result in self._function.results]
        if len(results) == 1:
            self.writer.emit(Ret(results[0]))
        else:
            structure = self.writer.fresh()
            self.writer.emit(AllocADT(TUPLE, structure, tuple(results)))
            self.writer.emit(Ret(structure))
        return self.writer.finished()

    def register(self, name: str) -> int:
        """The register of a value; a constant is loaded into a new one."""
        if name in self._registers:
            return self._registers[name]
        return self.writer.constant(self._program.constants[name])

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Call() | HostCall():
                self._call(statement)
            case Branch():
                self._branch(statement)
            case Loop():
                self._loop(statement)
        self._shapes |= self._flow.defined(statement, self._shapes)

    def _define(self, names: Sequence[str], registers: Sequence[int]) -> None:
        """Name the registers; one that has a name already is copied, so that each can be killed alone."""
        taken = set(self._registers.values())
        for name, register in zip(names, registers, strict=True):
            if register in taken:
                source, register = register, self.writer.fresh()
                self.writer.emit(Move(source, register))
            taken.add(register)
            self._registers[name] = register

    # Regions

    def _call(self, call: Call | HostCall) -> None:
        region = call.region
        pairs = list(zip(region.inputs, call.inputs, strict=True))
        fixed = {mine: name for mine, name in pairs if name not in self._registers}
        network = None if isinstance(call, HostCall) else self._static(call)
        if network is not None:
            sources = dict(pairs)
            names = [sources[network.plan.buffers[number].name] for number in network.plan.inputs]
            registers = [self.register(name) for name in names]
            plan = self._lowering.plan(network, region.name)
            outputs = self.writer.run(RunPlan, plan, registers, len(network.plan.outputs))
        else:
            if isinstance(call, Call):
                region = self._lowering.dims.symbolic(self._function.name, call)
            primitive = self._lowering.region(region, fixed, HOST if isinstance(call, HostCall) else REGION)
            registers = [self._registers[name] for mine, name in pairs if mine not in fixed]
            outputs = self.writer.run(RunRegion, primitive, registers, len(region.outputs))
        self._define(call.outputs, outputs)

    def _static(self, call: Call) -> CompiledNetwork | None:
        """The region, compiled, when all its shapes are known and it is for a CPU, whose memory the machine has;
        else None.

        Raises: ShapeMismatchError when they do not fit, and the region is called in every run.
        """
        try:
            graph = self._flow.graph(call, self._shapes)
        except ShapeMismatchError:
            if self._function.name == MAIN:
                raise
            return None
        in_host_memory = self._lowering.target.traits.uses_host_memory
        return self._lowering.compiled(graph) if graph is not None and in_host_memory else None

    # Control flow

    def _branch(self, branch: Branch) -> None:
        writer = self.writer
        condition, one = self.register(branch.condition), writer.number(1)
        outputs = [writer.fresh() for _ in branch.outputs]
        # Backpatching: the jump is written when the place is known where the other arm begins.
        test = writer.hold()
        self._arm(branch.then, outputs)
        end = writer.hold()
        writer.branch(test, condition, one, writer.here)
        self._arm(branch.otherwise, outputs)
        writer.jump(end, writer.here)
        writer.kill(one)
        self._define(branch.outputs, outputs)

    def _arm(self, arm: Arm, outputs: Sequence[int]) -> None:
        number = self._lowering.function(arm.function, 0, self._flow.of(arm.inputs, self._shapes))
        given = tuple(self.register(name) for name in arm.inputs)
        call = self.writer.fresh()
        self.writer.emit(Invoke(number, call, given))
        self._take(call, outputs)

    def _take(self, call: int, outputs: Sequence[int]) -> None:
        """Take the results of a call apart."""
        if len(outputs) == 1:
            self.writer.emit(Move(call, outputs[0]))
        else:
            for place, output in enumerate(outputs):
                self.writer.emit(GetField(call, place, output))
        self.writer.kill(call)

    def _loop(self, loop: Loop) -> None:
        writer, body = self.writer, self._program.functions[loop.body]
        number = self._lowering.function(loop.body, len(loop.captured), self._flow.iteration(loop, self._shapes))
        closure = writer.fresh() if loop.captured else None
        if closure is not None:
            free = tuple(self.register(name) for name in loop.captured)
            writer.emit(AllocClosure(number, closure, free))
        code = LoopCode(
            writer,
            count=None if loop.count is None else self.register(loop.count),
            condition=None if loop.condition is None else self.register(loop.condition),
            carried=[self.register(name) for name in loop.carried],
            rows=body.results[1 + len(loop.carried) :],
        )

        def iteration(args: Sequence[int], results: Sequence[int]) -> None:
            call = writer.fresh()
            if closure is None:
                writer.emit(Invoke(number, call, tuple(args)))
            else:
                writer.emit(InvokeClosure(closure, call, tuple(args)))
            self._take(call, results)

        carried, collected = code.write(iteration)
        if closure is not None:
            writer.kill(closure)
        self._define((*loop.outputs, *loop.collected), (*carried, *collected))
