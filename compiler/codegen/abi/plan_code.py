"""Writes the plan of a network as machine code: sizes, the places of buffers in memory, and the calls of kernels.

The extents of a plan may be formulas of symbols, whose values are numbers of the function that runs the plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import INT, LONG, NULL, POINTER, CFunction, CModule
from retune.compiler.codegen.abi.size_formulas import SizeFormulas
from retune.compiler.graph.region import Param
from retune.compiler.ir.dims import Dim, same, substitute
from retune.compiler.ir.guards import Guard
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, Plan


@dataclass(frozen=True, slots=True)
class ExportedPlan:
    """A network whose plan is written as machine code. The shapes of the plan, and sizes of kernels, may be formulas of
    symbols; then `slots` are the numbers of its buffers' slots in the arena, as `SymbolicPlan` has them, and `guards`
    say for which sizes it holds. `inputs` and `outputs` are what callers know them as, `names` the symbols.
    """

    network: CompiledNetwork
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    slots: tuple[int, ...] = ()
    guards: tuple[Guard, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, network: CompiledNetwork) -> "ExportedPlan":
        """A network of fixed shapes."""
        plan = network.plan

        def params(numbers: tuple[int, ...]) -> tuple[Param, ...]:
            specs = (plan.buffers[number] for number in numbers)
            return tuple(Param(spec.name, spec.dtype, spec.shape) for spec in specs)

        return cls(network, params(plan.inputs), params(plan.outputs))

    @property
    def plan(self) -> Plan:
        """The plan of the network."""
        return self.network.plan

    @property
    def symbols(self) -> dict[str, tuple[int, int]]:
        """The symbols, and the input and the axis whose extent each is."""
        symbols: dict[str, tuple[int, int]] = {}
        for index, number in enumerate(self.plan.inputs):
            for axis, extent in enumerate(self.plan.buffers[number].shape):
                if isinstance(extent, Dim) and str(extent) in self.names:
                    symbols.setdefault(str(extent), (index, axis))
        return symbols

    @property
    def limits(self) -> str:
        """The guards, for people, such as `512 > tokens`."""
        return ", ".join(str(guard.rename(self.names)) for guard in self.guards)

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of a buffer with the names of symbols."""
        return tuple(map(self._with_names, self.plan.buffers[number].shape))

    def _with_names(self, extent: int) -> int:
        return substitute(extent, {symbol: Dim.symbol(name) for symbol, name in self.names.items()})


class PlanCode:
    """Writes instructions of the function `run` that lay out a plan for sizes of its symbols, and run it.

    `nbytes` are the bytes of the buffers, `memory_bytes` those of intermediates and of the kernels' workspace, and
    `fits` is whether the plan holds for the sizes.
    """

    def __init__(self, run: CFunction, exported: ExportedPlan, sizes: Mapping[str, ir.Value]) -> None:
        self._run, self._exported, self._sizes = run, exported, sizes
        self._formulas = formulas = SizeFormulas(run, sizes)
        self.extent, self.align = formulas.extent, formulas.align
        plan = exported.plan
        for guard in exported.guards:
            formulas.guard(guard)
        self.nbytes = [formulas.nbytes(spec) for spec in plan.buffers]
        self._kernels = {kernel.name: kernel for kernel in exported.network.kernels}
        if exported.slots:
            self._check_sizes()
        self.owners: dict[int, int] = {}
        """The number of the output whose array is the memory of a buffer that owns memory."""
        self._offsets: dict[int, ir.Value] = {}
        """Where buffers begin in the memory of a run."""
        self._place_buffers()

    @property
    def fits(self) -> ir.Value:
        """Whether the plan holds for the sizes."""
        return self._formulas.fits

    def _check_sizes(self) -> None:
        """Require that no view is larger than its owner, and that kernels have arguments of possible shapes."""
        builder = self._run.builder
        for number, spec in enumerate(self._exported.plan.buffers):
            if spec.storage != number:
                fits = builder.icmp_unsigned("<=", self.nbytes[number], self.nbytes[spec.storage])
                self._formulas.require(fits)
        for kernel in self._kernels.values():
            for arg in kernel.args:
                for extent in arg.shape:
                    self.extent(extent)

    def _place_buffers(self) -> None:
        """Lay out the arena, then outputs that no array of the caller holds whole, then the kernels' workspace."""
        formulas, exported, plan = self._formulas, self._exported, self._exported.plan
        end: ir.Value = LONG(plan.arena_bytes)
        if exported.slots:
            slots: list[ir.Value] = [LONG(0)] * (max(exported.slots) + 1)
            for number, slot in enumerate(exported.slots):
                if slot >= 0:
                    slots[slot] = formulas.maximum(slots[slot], self.align(self.nbytes[number]))
            begins, end = [], LONG(0)
            for nbytes in slots:
                begins.append(end)
                end = formulas.add(end, nbytes)
            self._offsets |= {number: begins[slot] for number, slot in enumerate(exported.slots) if slot >= 0}
        else:
            self._offsets |= {number: LONG(spec.offset) for number, spec in enumerate(plan.buffers)}
        for index, output in enumerate(plan.outputs):
            root = plan.root(output)
            # An output that is a view of a part cannot be the memory of the whole buffer.
            if root.kind is BufferKind.OUTPUT and same(plan.buffers[output].nbytes, root.nbytes):
                self.owners.setdefault(root.storage, index)
        end = self.align(end)
        for number, spec in enumerate(plan.buffers):
            if spec.kind is BufferKind.OUTPUT and spec.storage == number and number not in self.owners:
                self._offsets[number] = end
                end = formulas.add(end, self.align(self.nbytes[number]))
        self._workspace, room = end, LONG(0)
        for kernel in self._kernels.values():
            room = formulas.maximum(room, self.extent(kernel.workspace_bytes))
        self.memory_bytes = formulas.add(end, self.align(room))

    def addresses(
        self, arrays: Mapping[int, ir.Value], memory: ir.Value, constants: ir.Value, offsets: Mapping[int, int]
    ) -> dict[int, ir.Value]:
        """Where the buffers lie that own memory which kernels or outputs use: in the caller's `arrays`, which are by
        buffer, in `memory`, or at an offset from `constants`.
        """
        plan, run = self._exported.plan, self._run

        def address(number: int) -> ir.Value:
            match plan.buffers[number].kind:
                case BufferKind.INPUT:
                    return arrays[number]
                case BufferKind.CONSTANT:
                    return run.at(constants, offsets[number])
            if number in self.owners:
                return arrays[plan.outputs[self.owners[number]]]
            return run.at(memory, self._offsets[number])

        used = (*plan.outputs, *(number for call in plan.calls for number in call.buffers))
        return {number: address(number) for number in sorted({plan.buffers[number].storage for number in used})}

    def call_kernels(
        self,
        module: CModule,
        buffers: Mapping[int, ir.Value],
        memory: ir.Value,
        threads: Callable[[KernelArtifact], ir.Value],
    ) -> ir.Value:
        """Run the kernels in order, each on its `threads`; the codes that they return, joined by "or"."""
        run, plan = self._run, self._exported.plan
        functions = {
            name: module.declare(name, "i32", ", ".join(["ptr, i32", *["i64"] * len(kernel.symbols)]), "hidden")
            for name, kernel in self._kernels.items()
        }
        arguments = run.slot(POINTER, max((len(call.buffers) for call in plan.calls), default=0) + 1)
        workspace = run.at(memory, self._workspace)
        code: ir.Value = INT(0)
        for call in plan.calls:
            kernel = self._kernels[call.kernel]
            addresses = [buffers[plan.buffers[number].storage] for number in call.buffers]
            has_workspace = isinstance(kernel.workspace_bytes, Dim) or kernel.workspace_bytes > 0
            for slot, address in enumerate([*addresses, workspace if has_workspace else NULL]):
                run.store(address, arguments, 8 * slot)
            sizes = [self._sizes[symbol] for symbol in kernel.symbols]
            # Joined and tested once at the end, so that a kernel that fails does not skip freeing memory.
            result = run.call(functions[call.kernel], arguments, threads(kernel), *sizes)
            code = run.builder.or_(code, result)
        return code
