"""Compiles a region with symbolic dimensions once for all shapes that its guards allow.

The graph passes and the partition see symbolic extents: what they decide by order becomes a guard, and extents that are
not known to be equal are taken to be unequal. Each group of nodes becomes a kernel that takes sizes, or, where there is
none, a region that is compiled for each shape.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn, TypeVar

from retune.compiler.core.errors import ArtifactError, DefinitionError, LoweringError, ScheduleError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.ir import Array, Graph, Node, Value
from retune.compiler.graph.partition.partition import FusedCall, Partition, partition, with_numbers
from retune.compiler.graph.partition.to_plan import to_symbolic_plan
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.region import Param
from retune.compiler.graph.symbolic import SymbolicGraph, likely_graph, solve, substitute_attr
from retune.compiler.graph.symbolic_region import RegionBytes, SymbolicRegion
from retune.compiler.ir import trace
from retune.compiler.ir.dims import Dim, substitute
from retune.compiler.ir.guards import Assumptions, Guard, exclusions, strongest
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.kernel_row import KernelRow, ProgramOrigin
from retune.compiler.runtime.loader import MOST_SYMBOLS
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.vm.kernel_store import STORE, named_by_content
from retune.compiler.vm.saved_program import decoded_region
from retune.compiler.vm.subgraph import TunedPrograms
from retune.compiler.vm.symbolic_plan import SymbolicPlan, SymbolicPlanRegion

_log = logging.getLogger(__name__)
V = TypeVar("V")
_USUAL = (1, 1024)
"""Where guards are looked at of a size that has no range."""


@dataclass(frozen=True, slots=True)
class SymbolicNetwork:
    """A compiled region: its kernels, and a row on each. `tasks` are those worth tuning, with their weights, whose
    symbols are those of the program in `symbols`.
    """

    region: SymbolicPlanRegion
    kernels: tuple[KernelArtifact, ...]
    coverage: tuple[KernelRow, ...]
    tasks: tuple[tuple[SearchTask, int], ...]
    symbols: Mapping[str, str]

    def limits(self, ranges: Mapping[str, tuple[int, int]]) -> str:
        """What sizes within `ranges`, of which none is 0, must fulfill for the plan; empty if all do."""
        bounds = {symbol: ranges.get(name, _USUAL) for symbol, name in self.symbols.items()}
        bounds = {symbol: (max(low, 1), high) for symbol, (low, high) in bounds.items() if high}
        guards = [guard for guard in self.region.plan.guards if guard.dim.symbols <= bounds.keys()]
        return ", ".join(str(guard.rename(self.symbols)) for guard in exclusions(guards, bounds))


def compile_symbolic(
    region: SymbolicRegion,
    constants: Mapping[str, Array],
    target: Target,
    threads: int,
    constant_name: Callable[[Array], str],
    tuned: TunedPrograms,
) -> SymbolicNetwork | Unsupported:
    """The region for all shapes of its graph for large sizes, or why there is none. `constants` are those that it reads
    and the inputs that are the same array in every call; `constant_name` gives a constant of the plan a name.

    Raises: DefinitionError, LoweringError or ScheduleError, see `attempt`.
    """
    if set(region.determining) - constants.keys():
        return Unsupported(f"its shapes depend on the values of {', '.join(region.determining)}")
    likely = likely_graph(region.variants)
    if likely is None or not likely[0].constants <= constants.keys():
        return Unsupported("no numbers are known that its guards allow")
    variant, numbers = likely
    equal = solve(variant.guards)
    numbers = {name: number for name, number in numbers.items() if name not in equal}
    if len(numbers) > MOST_SYMBOLS:
        return Unsupported(f"it has more than {MOST_SYMBOLS} symbolic extents")
    renaming = {name: f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}_{number}" for number, name in enumerate(numbers)}
    dims: dict[str, int] = {name: Dim.symbol(f"n_{new}") for name, new in renaming.items()}
    dims |= {name: substitute(formula, dims) for name, formula in equal.items()}
    guards = tuple(_rename(variant.guards, dims))
    with Assumptions({str(dims[name]): number for name, number in numbers.items()}, guards) as assumed:
        graph = optimize(variant.static(dims, constants))
        cut = named_by_content(partition(graph, target, hardware_of(target, threads)))
        flops = {task.name: with_numbers(task.dag).flop_count for task in cut.tasks}
    # While LLVM compiles a kernel, the other thread lowers the next.
    with ThreadPoolExecutor(1 if trace.is_active() else 2) as pool:
        records = [tuned.symbolic(task) for task in cut.tasks]
        pairs = zip(cut.tasks, records, strict=True)
        futures = [pool.submit(copy_context().run, _build, task, record) for task, record in pairs]
    programs = {task.name: future.result() for task, future in zip(cut.tasks, futures, strict=True)}
    built = {name: kernel for name, (kernel, _) in programs.items()}
    made = _region(region, graph, cut, built, assumed, guards, constant_name)
    rows = tuple(
        replace(programs[task.name][1], weight=weight, flops=flops[task.name], tunable=tunable)
        for task, weight, tunable in zip(cut.tasks, cut.weights, cut.tunable, strict=True)
    )
    kernels = {name: kernel for name, kernel in built.items() if isinstance(kernel, KernelArtifact)}
    tasks = tuple(
        (task, row.weight) for task, row in zip(cut.tasks, rows, strict=True) if row.tunable and task.name in kernels
    )
    symbols = {f"n_{new}": name for name, new in renaming.items()}
    return SymbolicNetwork(made, tuple(kernels.values()), rows, tasks, symbols)


def attempt(title: str, build: Callable[[], V | Unsupported]) -> V | Unsupported:
    """What `build` makes, or why it fails: a network that can be compiled for each shape is not refused."""
    try:
        return build()
    except (DefinitionError, LoweringError, ScheduleError) as error:
        return Unsupported(str(error))
    except (ArtifactError, LookupError, TypeError) as error:  # a bug of ours, such as an extent taken for a number
        _log.warning("%s is compiled for each shape: %s", title, error, exc_info=error)
        return Unsupported(f"{type(error).__name__}: {error}")


def _build(task: SearchTask, program: TaskProgram | None) -> tuple[KernelArtifact | Unsupported, KernelRow]:
    """The kernel of a task with its tuned program, else in its default schedule, and a row about the program."""
    row = KernelRow(task.name, task.workload_key)
    if program is not None and (steps := load_steps(program.steps)):
        build = partial(STORE.build_symbolic, task, steps)
        kernel = attempt(f"record {program.record_id}", build)
        if isinstance(kernel, KernelArtifact):
            return kernel, replace(row, origin=ProgramOrigin.RECORD, record_id=program.record_id)
        row = replace(row, note=f"record {program.record_id} cannot be built: {kernel.reason}")
    kernel = attempt(f"kernel {task.name}", partial(STORE.build_symbolic, task))
    return kernel, replace(row, note=_note(kernel) or row.note)


def _note(built: KernelArtifact | Unsupported) -> str:
    return f"compiled for each shape: {built.reason}" if isinstance(built, Unsupported) else ""


def _rename(guards: tuple[Guard, ...], dims: Mapping[str, int]) -> Iterator[Guard]:
    for guard in guards:
        dim = substitute(guard.dim, dims)
        if isinstance(dim, Dim):
            yield replace(guard, dim=dim)


def _region(
    region: SymbolicRegion,
    graph: Graph,
    cut: Partition,
    built: Mapping[str, KernelArtifact | Unsupported],
    assumed: Assumptions,
    guards: tuple[Guard, ...],
    constant_name: Callable[[Array], str],
) -> SymbolicPlanRegion:
    kernels = {name: kernel for name, kernel in built.items() if isinstance(kernel, KernelArtifact)}
    cut = replace(cut, kernels=tuple(_named_by_constants(graph, cut.kernels, kernels)))
    with assumed:
        plan, slots, arrays = to_symbolic_plan(graph, cut, kernels)
    symbolic = SymbolicPlan(replace(plan, name=region.name), slots, strongest((*guards, *assumed.guards)))
    groups: dict[str, bytes] = {}
    names: list[str] = []
    for call in cut.kernels:
        if call.name not in kernels and call.name not in groups:
            group = _group(graph, call, symbolic.symbols, constant_name)
            groups[call.name] = group.to_bytes()
            names += group.constants
    buffers = {number: constant_name(array) for number, array in arrays.items()}
    symbolic.verify(kernels, arrays)
    return SymbolicPlanRegion(
        name=region.name,
        inputs=region.inputs,
        constants=tuple(dict.fromkeys((*region.constants, *buffers.values(), *names))),
        determining=region.determining,
        results=region.results,
        plan=symbolic,
        buffers=buffers,
        general=region.to_bytes(),
        groups=groups,
        reasons={name: reason.reason for name, reason in built.items() if isinstance(reason, Unsupported)},
        read=decoded_region,
    )


def _named_by_constants(graph: Graph, calls: Sequence[FusedCall], kernels: Collection[str]) -> Iterator[FusedCall]:
    """The calls, in which those without a kernel have the name of a group: a group holds its constants, so that equal
    layers with weights of their own are groups of their own, and the first has the kernel's name.
    """
    names: dict[tuple[str, ...], str] = {}
    groups = Counter[str]()
    for call in calls:
        if call.name in kernels:
            yield call
            continue
        read = (name for node in _nodes_of(graph, call) for name in node.inputs if name in graph.constants)
        key = (call.name, *read)
        if key not in names:
            names[key] = f"{call.name}_{groups[call.name]}" if groups[call.name] else call.name
            groups[call.name] += 1
        yield replace(call, name=names[key])


_SMALL = 16
"""Elements of constants that are kept in the graph of a group."""


def _group(
    graph: Graph, call: FusedCall, symbols: tuple[str, ...], constant_name: Callable[[Array], str]
) -> SymbolicRegion:
    """The nodes of a call as a region. Its last input has the values of the symbols, in order."""
    nodes = _nodes_of(graph, call)
    sizes = f"{call.name}_sizes"
    dims = {symbol: Dim.symbol(f"{sizes}[{number}]") for number, symbol in enumerate(symbols)}
    # Also constants that kernels would have as literals, which are no arguments of the call.
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name in graph.constants)
    small = {name: graph.constants[name] for name in read if graph.constants[name].size <= _SMALL}
    names = {name: constant_name(graph.constants[name]) for name in read if name not in small}
    fed = [name for name in call.inputs if name not in graph.constants]
    produced = [node.output for node in nodes]
    values = {names.get(name, name): graph.values[name] for name in (*fed, *read, *produced)}
    values = {
        name: Value(name, tuple(substitute(dim, dims) for dim in value.shape), value.dtype)
        for name, value in values.items()
    }
    values[sizes] = Value(sizes, (len(symbols),), "int64")
    moved = tuple(
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            attrs={key: substitute_attr(attr, dims) for key, attr in node.attrs.items()},
        )
        for node in nodes
    )
    inputs = tuple(values[name] for name in dict.fromkeys((*fed, *names.values(), sizes)))
    own = Graph(call.name, inputs, call.outputs, moved, small, values)
    results = [values[name] for name in call.outputs]
    return SymbolicRegion(
        name=call.name,
        inputs=(*fed, sizes),
        constants=tuple(dict.fromkeys(names.values())),
        determining=(sizes,),
        results=tuple(Param(value.name, value.dtype, tuple(map(_extent_or_none, value.shape))) for value in results),
        variants=(SymbolicGraph(own, (), frozenset((*names.values(), sizes))),),
        origin=RegionBytes("group", b"-"),
        read=_no_origin,
    )


def _extent_or_none(extent: int) -> int | None:
    return None if isinstance(extent, Dim) else extent


def _no_origin(kind: str, data: bytes) -> NoReturn:
    raise DefinitionError(f"a group of nodes has no other form ({len(data)} bytes of {kind})")


def _nodes_of(graph: Graph, call: FusedCall) -> list[Node]:
    """The nodes that a call computes, in order."""
    wanted, nodes = {*call.outputs}, list[Node]()
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs):
            nodes.append(node)
            wanted |= {name for name in node.inputs if name not in call.inputs}
    return nodes[::-1]
