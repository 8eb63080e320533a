"""Compiles a network to an `Executable` for the virtual machine.

A network is a `Program`, a `Graph`, an ONNX model (its path, bytes or message) or a name of the zoo; it is not
modified. Tuning records come from a dispatch context (`with ApplyHistoryBest(log):`) or are passed. An executable that
compiles parts at run time, when their shapes are known, stores the records it needs.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retune.compiler.codegen.backend import backend_of
from retune.compiler.core.errors import (
    MachineError,
    ModelError,
    ModelFormatError,
    OptionError,
    ShapeMismatchError,
    TargetError,
)
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import made_for
from retune.compiler.driver.dispatch import is_enabled, is_silent
from retune.compiler.driver.hardware import threads_of
from retune.compiler.driver.network_build import bind_parameters
from retune.compiler.frontend.network import load_network_program
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.graph_region import GraphRegion, of_graph
from retune.compiler.graph.ir import Array, Graph
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.program import MAIN, Call, Function, Program
from retune.compiler.graph.region import bind
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.arguments import require_thread_count
from retune.compiler.runtime.ffi.host_array import HostArray
from retune.compiler.runtime.kernel_row import CoverageReport
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.library import VMLibrary
from retune.compiler.vm.lowering import Lowered, Lowering, SymbolicTask
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.subgraph import TunedPrograms, known_programs

_log = logging.getLogger(__name__)

Params = Mapping[str, object]
Targets = Target | str | Mapping[Any, Target | str] | Sequence[Target | str]
"""A target, or a mapping by device or a list with a single target."""


def compile(
    mod: Any,
    target: Targets | None = None,
    target_host: Target | str | None = None,
    params: Params | None = None,
    *,
    threads: int | None = None,
    best: Mapping[str, TaskProgram] | None = None,
) -> Executable:
    """Compile a network. `params` are arrays for inputs that are constants, and in place of initializers, by name;
    `threads` is the number of threads that it is meant to run on, all cores unless given; `best` has tuned programs by
    workload key.

    Raises: ModelError when the network cannot be read or a parameter fits no input; TargetError; LoweringError.
    """
    compiler = VMCompiler(threads=threads, best=best)
    if params is not None:
        compiler.set_params(params)
    compiler.lower(mod, target, target_host)
    compiler.codegen()
    return compiler.get_exec()


class VMCompiler:
    """Compiles a network step by step: `set_params`, `lower`, `codegen`, `get_exec`."""

    def __init__(self, *, threads: int | None = None, best: Mapping[str, TaskProgram] | None = None) -> None:
        """Raises: OptionError for a number of threads that cannot be, or programs that are none."""
        if threads is not None:
            require_thread_count(threads)
        if not isinstance(best, Mapping | None) or not all(map(_is_program, (best or {}).values())):
            raise OptionError(f"best is tuned programs by workload key, not {best!r:.80}")
        self._threads = threads
        self._best = dict(best or {})
        self._params: dict[str, Array] = {}
        self._program: Program | None = None
        self._lowering: Lowering | None = None
        self._executable: Executable | None = None
        self._coverage: CoverageReport | None = None

    def set_params(self, params: Params) -> None:
        """Fix inputs, by name, before `lower`. Raises: ModelFormatError when a value is no array."""
        if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
            raise ModelFormatError(f"parameters are arrays by the names of inputs, not {params!r:.80}")
        for name, value in params.items():
            array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
            if array.dtype.hasobject:
                raise ModelFormatError(f"the parameter {name} is no array of numbers")
            self._params[name] = array

    def get_params(self) -> dict[str, HostArray]:
        """The constants of the network: what `set_params` was given, and after `lower` or `optimize` all that the
        network reads.
        """
        params = self._params if self._program is None else _constants_of(self._program)
        return {name: array.view(HostArray) for name, array in params.items()}

    def optimize(
        self,
        mod: Any,
        target: Targets | None = None,
        target_host: Target | str | None = None,
        params: Params | None = None,
    ) -> tuple[Program, dict[str, HostArray]]:
        """The network after the graph passes, with parameters in place, and the constants that it reads. Regions of
        shapes that are not known yet stay as they are: they are optimized when these are.

        Raises: as `compile`.
        """
        _machine(target, target_host)
        if params is not None:
            self.set_params(params)
        program = self._program_of(mod)
        functions = {name: _optimize(function, program) for name, function in program.functions.items()}
        program = replace(program, functions=functions)
        program.verify()
        self._program = program
        return program, self.get_params()

    def lower(self, mod: Any, target: Targets | None = None, target_host: Target | str | None = None) -> None:
        """Read the network and check that it can be compiled for the target. Raises: as `compile`."""
        self._program = program = self._program_of(mod)
        machine = _machine(target, target_host)
        tuned = TunedPrograms(known_programs(machine, self._best))
        self._lowering = Lowering(program, machine, threads_of(machine, self._threads), tuned)
        self._executable = None

    def codegen(self) -> None:
        """Generate kernels. Where records are used, one warning names the kernels worth tuning that have no record.

        Raises: MachineError before `lower`; as `compile`.
        """
        if self._lowering is None:
            raise MachineError("there is nothing to generate code for: call lower first")
        lowering = self._lowering
        done = lowering.lower()
        # Only regions that are compiled at run time ask for programs again.
        is_static = all(isinstance(region, PlanRegion) for region in done.program.regions())
        library = VMLibrary(done.kernels, () if is_static else lowering.tuned.best, _about(lowering, done))
        self._executable = Executable(done.program, library)
        self._coverage = CoverageReport.of(done.coverage)
        fallen = self._coverage.fallback_text()
        if fallen and not is_silent() and (lowering.tuned.best or is_enabled()):
            _log.warning("%s: %s", lowering.program.name, fallen)

    @property
    def coverage(self) -> CoverageReport:
        """What the kernels of known shapes were made from; `VirtualMachine.specializations` tells it of the others.

        Raises: MachineError before `codegen`.
        """
        if self._coverage is None:
            raise MachineError("nothing is compiled yet: call lower and codegen first")
        return self._coverage

    @property
    def symbolic_tasks(self) -> list[SymbolicTask]:
        """The tasks of kernels with symbolic extents that are worth tuning. Raises: MachineError before `codegen`."""
        if self._lowering is None or self._coverage is None:
            raise MachineError("nothing is compiled yet: call lower and codegen first")
        return self._lowering.tasks

    def get_exec(self) -> Executable:
        """The executable. Raises: MachineError before `codegen`."""
        if self._executable is None:
            raise MachineError("there is no executable yet: call lower and codegen first")
        return self._executable

    def _program_of(self, mod: Any) -> Program:
        """The network as a program, its parameters constants, as they are already in what `optimize` returned."""
        if mod is self._program and mod is not None:
            return mod
        if isinstance(mod, Program):
            program = _bound_program(mod, self._params)
        elif isinstance(mod, Graph):
            program = of_graph(bind_parameters(mod, self._params))
        elif isinstance(mod, str):
            program = load_network_program(mod, constants=self._params)
        elif mod is None:
            raise ModelError("there is no network to compile")
        else:
            program = load_program(mod, constants=self._params)
        program.verify()
        return program


def _is_program(value: object) -> bool:
    return all(hasattr(value, name) for name in ("steps", "record_id", "seconds"))


def _machine(target: Targets | None, target_host: Target | str | None) -> Target:
    """The target; the host of a GPU is this machine's CPU, so `target_host` is only checked.

    Raises: TargetError when LLVM does not know the CPU or GPU, or there are several targets.
    """
    if target_host is not None:
        Target(str(target_host))
    if isinstance(target, Mapping) and "kind" not in target:
        target = tuple(target.values())
    if isinstance(target, list | tuple):
        if len(target) != 1:
            raise TargetError(f"a network is compiled for one target, not for {len(target)}")
        target = target[0]
    machine = Target.host() if target is None else target if isinstance(target, Target) else Target(target)  # type: ignore[arg-type]
    # Asks LLVM now: a CPU that it does not know fails here, and not in the first kernel.
    backend_of(machine).describe(machine)
    return machine


def _optimize(function: Function, program: Program) -> Function:
    """The function with graphs after the passes in place of those regions whose shapes the graphs themselves say."""
    body = []
    for statement in function.body:
        if isinstance(statement, Call) and isinstance(statement.region, GraphRegion):
            statement = replace(statement, region=GraphRegion.of(optimize(statement.region.graph)))
        body.append(statement)
    whole = program.static_graph() if function.name == MAIN else None
    if whole is not None:
        region = GraphRegion.of(optimize(whole))
        body = [Call(region, region.inputs, region.outputs)]
    return replace(function, body=tuple(body))


def _constants_of(program: Program) -> dict[str, Array]:
    graphs = [region.graph for region in program.regions() if isinstance(region, GraphRegion)]
    own = {name: array for graph in graphs for name, array in graph.constants.items()}
    return own | dict(program.constants)


def _bound_program(program: Program, params: Mapping[str, Array]) -> Program:
    """The program with constants in place of the inputs that `params` names. Raises: ModelFormatError."""
    names = [param.name for param in program.inputs]
    unknown = [name for name in params if name not in names]
    if unknown:
        raise ModelFormatError(f"the network has no input {unknown[0]}; its inputs are {', '.join(names)}")
    try:
        bind([param for param in program.inputs if param.name in params], params)
    except ShapeMismatchError as error:
        raise ModelFormatError(str(error)) from None
    left = tuple(param for param in program.inputs if param.name not in params)
    main = replace(program.main, params=left)
    functions = {**program.functions, MAIN: main}
    return replace(program, functions=functions, constants={**program.constants, **params})


def _about(lowering: Lowering, done: Lowered) -> dict[str, object]:
    """Facts that travel with the executable."""
    rows = [row.to_json() for row in done.coverage]
    facts = made_for(lowering.target, lowering.threads)
    return {**facts, "coverage": rows, "per_shape": dict(lowering.per_shape), "limits": dict(lowering.limits)}
