"""Compiles a subgraph of a program, as a network is compiled for the graph executor.

A kernel gets the program that was tuned for it; else that of
the kernel most alike, fitted to its sizes; else what a dispatch context knows; else the default schedule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.dispatch import DispatchContext, is_enabled, suppress_dispatch_warnings
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import Partition, partition
from retune.compiler.graph.partition.winograd import winograd_for
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.record import FITTED_CANDIDATE, TaskProgram
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.transfer import transfer_program
from retune.compiler.vm.kernel_store import STORE, named_by_content


class TunedPrograms:
    """Programs by task, the fastest of each."""

    def __init__(self, programs: Sequence[TaskProgram] = ()) -> None:
        self._best: dict[str, TaskProgram] = {}
        self._symbolic: dict[str, TaskProgram] = {}
        # The slowest first, so that the fastest is the one that stays under its key.
        for program in sorted(programs, key=lambda program: program.seconds, reverse=True):
            table = self._symbolic if is_symbolic(program.task_key) else self._best
            table[program.task_key] = program

    def symbolic(self, task: SearchTask) -> TaskProgram | None:
        """The program of a task with symbolic extents."""
        return self._symbolic.get(task.workload_key)

    @property
    def best(self) -> tuple[TaskProgram, ...]:
        """The fastest program of every task of fixed extents."""
        return tuple(self._best.values())

    def programs_for(self, cut: Partition) -> dict[str, TaskProgram]:
        """The programs for the tasks of a network, by workload key."""
        chosen: dict[str, TaskProgram] = {}
        for task in (*cut.tasks, *(other.task for other in cut.alternatives)):
            exact = self._best.get(task.workload_key)
            if exact is not None:
                chosen[task.workload_key] = replace(exact, record_id=exact.record_id or "of a log")
        for task, tunable in zip(cut.tasks, cut.tunable, strict=True):
            if tunable and task.workload_key not in chosen and self._best:
                steps = transfer_program(task, self._best.values())
                if steps is not None:
                    text = dump_steps(steps)
                    chosen[task.workload_key] = TaskProgram(task.workload_key, text, mutation=FITTED_CANDIDATE)
        return chosen


def is_symbolic(task_key: str) -> bool:
    """Whether a workload key is that of a task with symbolic extents."""
    return '{"dim":' in task_key


def known_programs(target: Target, best: Mapping[str, TaskProgram]) -> tuple[TaskProgram, ...]:
    """What `best` and the dispatch context of this thread know, as data."""
    passed = [TaskProgram(key, program.steps, program.seconds, program.record_id) for key, program in best.items()]
    context = DispatchContext.current.programs(target) if is_enabled() else ()
    entered = [TaskProgram(program.task_key, program.steps, program.seconds) for program in context]
    return tuple(program for program in (*passed, *entered) if not math.isnan(program.seconds))


def compile_subgraph(graph: Graph, target: Target, threads: int, programs: TunedPrograms) -> CompiledNetwork:
    """Compile one graph. Raises: DefinitionError or LoweringError when even default schedules cannot be built."""
    graph = optimize(graph)
    cut = partition(graph, target, hardware_of(target, threads), winograd_for(target))
    # Kernels of several graphs live in one executable, where equal names must mean equal code.
    cut = named_by_content(cut)
    best = programs.programs_for(cut)
    with suppress_dispatch_warnings():  # the compilation of the whole program reports on all subgraphs
        return compile_graph(graph, target, best, threads=threads, cut=cut, build=STORE.build)
