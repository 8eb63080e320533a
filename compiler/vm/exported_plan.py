"""The plan of a network of dynamic shapes for an export, whose machine code computes sizes: one plan for all shapes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from retune.compiler.codegen.abi.plan_code import ExportedPlan
from retune.compiler.core.errors import OptionError
from retune.compiler.graph.program import Call, HostCall, Program
from retune.compiler.graph.region import Dimension, Param
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.guards import Guard
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Plan
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.symbolic_plan import SymbolicPlan, SymbolicPlanRegion


def exported_plan(executable: Executable) -> ExportedPlan:
    """The plan of an executable. Raises: OptionError that names what is not in one plan for all shapes."""
    program, library = executable.program, executable.library
    obstacle = _obstacle(executable)
    if obstacle:
        raise OptionError(
            f"{program.name} cannot be exported for all shapes: {obstacle}; give fixed ones, such as --shape NAME=1,128"
        )
    (call,) = program.main.body
    assert isinstance(call, Call), "others are obstacles"
    region = call.region
    assert isinstance(region, PlanRegion | SymbolicPlanRegion), "what is compiled for each shape is an obstacle"
    symbolic = SymbolicPlan(region.plan, (), ()) if isinstance(region.plan, Plan) else region.plan
    plan = _interface(symbolic.plan, call, program)
    kernels = {kernel.name: kernel for kernel in library.kernels}
    constants = {number: program.constants[name] for number, name in region.buffers.items()}
    code = tuple(kernels[name] for name in region.kernels)
    network = CompiledNetwork(plan, code, constants, executable.coverage, library.about)
    results = zip(program.outputs, plan.outputs, program.main.results, strict=True)
    outputs = tuple(Param(name, plan.buffers[number].dtype, result.dims) for name, number, result in results)
    extents = list(_extents(plan, program.inputs))
    names = {str(dim): name if isinstance(name, str) else str(dim) for dim, name in reversed(extents)}
    names = {str(dim): names[str(dim)] for dim, _ in extents if isinstance(dim, Dim) and str(dim) in dim.symbols}
    guards = (*symbolic.guards, *_limits(extents, program))
    slots = symbolic.slots and (*symbolic.slots, *[-1] * (len(plan.buffers) - len(symbolic.slots)))
    return ExportedPlan(network, program.inputs, outputs, slots, guards, names)


def _obstacle(executable: Executable) -> str:
    """What of a program is not in one plan for all shapes; empty if all is."""
    program = executable.program
    for name, reason in executable.per_shape.items():
        return f"{name} is compiled for each shape, because {reason.removeprefix(f'{name}: ')}"
    for statement in program.main.body:
        if isinstance(statement, HostCall):
            return f"{statement.region.name} is computed by NumPy, because its shape follows from data"
        if not isinstance(statement, Call):
            return f"{', '.join(statement.outputs)} is computed by a branch or a loop"
        if not isinstance(statement.region, PlanRegion | SymbolicPlanRegion):
            return f"{statement.region.name} is compiled for each shape"
        call = statement
    if len(program.main.body) != 1:
        return f"it has {len(program.main.body)} parts"
    known = {*call.outputs, *(param.name for param in program.inputs)}
    for result in program.main.results:
        if result.name not in known:
            return f"its output {result.name} is a constant"
    for param in program.inputs:
        if param.dtype is None or param.dims is None:
            return f"the input {param} has no type or rank"
    return ""


def _interface(plan: Plan, call: Call, program: Program) -> Plan:
    """The plan with the inputs and outputs of the program, in order, each a buffer of its own."""
    buffers = list(plan.buffers)
    params = {param.name: param for param in program.inputs}
    passed = [name for name in call.inputs if name in params]
    numbers = dict(zip(passed, plan.inputs, strict=True))
    dims = {name: dim for dim, name in _extents(plan, [params[name] for name in passed]) if name is not None}
    for param in program.inputs:
        if param.name not in numbers:  # no kernel reads it
            named = (name or f"{param.name}_{axis}" for axis, name in enumerate(param.dims or ()))
            shape = tuple(dims.get(name, _extent(name)) for name in named)
            numbers[param.name] = len(buffers)
            buffers.append(BufferSpec(param.name, shape, str(param.dtype), BufferKind.INPUT, len(buffers)))
    inputs = tuple(numbers[param.name] for param in program.inputs)
    numbers |= dict(zip(call.outputs, plan.outputs, strict=True))
    outputs: list[int] = []
    for result in program.main.results:
        number = numbers[result.name]
        if number in (*inputs, *outputs):
            buffers.append(buffers[number])
            number = len(buffers) - 1
        outputs.append(number)
    return replace(plan, name=program.name, buffers=tuple(buffers), inputs=inputs, outputs=tuple(outputs))


def _extent(name: int | str) -> int:
    return Dim.symbol(f"n_{name}") if isinstance(name, str) else name


def _extents(plan: Plan, params: Sequence[Param]) -> Iterator[tuple[int, Dimension]]:
    """The extents of the plan's inputs, and what they are called in the program."""
    for number, param in zip(plan.inputs, params, strict=True):
        yield from zip(plan.buffers[number].shape, param.dims or (), strict=True)


def _limits(extents: Sequence[tuple[int, Dimension]], program: Program) -> Iterator[Guard]:
    """That extents of one name are equal, in their range."""
    first: dict[str, int] = {}
    for dim, name in extents:
        if not isinstance(name, str) or not isinstance(dim, Dim):
            continue
        low, high = program.ranges.get(name, (0, 0))
        known = first.setdefault(name, dim)
        above, below, apart = dim - low + 1, high - dim + 1, dim - known
        if name in program.ranges and dim is known:
            yield from (Guard(limit, False, True) for limit in (above, below) if isinstance(limit, Dim))
        if isinstance(apart, Dim):
            yield Guard(apart, True, True)
