"""Finds what `retune explain` needs of a network or a run: its kernels, their programs, times and records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core import config
from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import has_sizes
from retune.compiler.core.options import TuneOptions
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import fastest_alternatives
from retune.compiler.driver.hardware import threads_of
from retune.compiler.frontend import zoo
from retune.compiler.graph.partition.partition import with_alternatives
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.kernel_row import KernelRow, ProgramOrigin
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.explain import Explanation, SearchFacts, find_names, time_kernel
from retune.compiler.tune.extract import ExtractedNetwork, extract_network
from retune.compiler.tune.extract_dynamic import AnyNetwork, DynamicNetwork
from retune.compiler.tune.limits import MachineLimits, measure_limits
from retune.compiler.tune.operators import is_operator
from retune.flows.cli.commands.compile import HOST
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunInfo, RunLedger
from retune.storage.store_url import Location
from retune.tasks.find_programs import find_programs, record_scope, symbolic_programs
from retune.tasks.report.facts import find_run


def _find_run(home: Location, wanted: str) -> RunInfo:
    if Path(wanted).suffix in (".retune", ".so"):
        raise OptionError(f"{wanted} is a compiled network, which has no schedules: name its model, or a run of it")
    if not RunLedger(home).list():
        raise OptionError(f"there is no network or run {wanted!r}: `retune networks` and `retune runs` list them")
    return find_run(home, wanted)


class KernelExplainer:
    """Explains the kernels of a network with the records of a store."""

    def __init__(self, network: AnyNetwork, programs: Mapping[str, TaskProgram], home: Location) -> None:
        self._network = network
        self._programs = programs
        self._home = home
        self._limits: MachineLimits | None = None
        if not isinstance(network, ExtractedNetwork):
            self._tasks = {task.name: task for task in network.tasks}
            self._uses = {task.name: weight for task, weight in zip(network.tasks, network.weights, strict=True)}
            return
        alternatives = fastest_alternatives(network.partition, programs)
        graph, self._cut = with_alternatives(network.graph, network.partition, alternatives)
        self._graph = replace(graph, constants={})  # whose nodes are named, and nothing more
        cut = self._cut
        self._tasks = {task.name: task for task in (*cut.tasks, *network.tasks)}
        self._uses = {task.name: weight for task, weight in zip(cut.tasks, cut.weights, strict=True)}

    @classmethod
    def of(
        cls, source: str, home: Location, threads: int | None, target: str | None, shapes: Sequence[str]
    ) -> "KernelExplainer":
        """That of a network, or of a run, which knows network, threads, target and shapes itself.

        Raises: OptionError when there is neither; as `extract_network`.
        """
        options = TuneOptions.of(config.load(), threads=threads, target=target)
        threads, target, winograd, sample, seed = options.threads, options.target, options.winograd, options.sample, 0
        if source not in zoo.NAMES and not source.endswith(".onnx"):
            asked = _find_run(home, source).describe
            source, winograd = str(asked["network"]), bool(asked.get("winograd", True))
            if is_operator(source):
                raise OptionError(f"the run tuned an operator, {source}; only kernels of networks can be explained")
            threads, target = threads or int(asked["threads"]), target or str(asked["target"])
            shapes = shapes or tuple(str(asked.get("shapes") or "").split())
            sample, seed = asked.get("sample"), int(asked.get("seed") or 0)
        count = threads_of(Target(target or HOST), threads)
        if has_sizes(shapes) or sample:
            dynamic = DynamicNetwork(source, shapes, sample, seed).extract(target or HOST, count)
            return cls(dynamic, symbolic_programs(home, str(dynamic.target), count), home)
        network = extract_network(source, target or HOST, count, shapes, winograd)
        return cls(network, find_programs(network, home, None), home)

    def rows(self) -> list[KernelRow]:
        """Every kernel, those that take most of the network's time first; those without a time last."""
        rows = []
        for name, task in self._tasks.items():
            program = self._programs.get(task.workload_key)
            has_record = program is not None and bool(program.record_id)
            rows.append(
                KernelRow(
                    name,
                    task.workload_key,
                    self._uses.get(name, 0),
                    task.flop_count,
                    best_seconds=program.seconds if program else math.inf,
                    origin=ProgramOrigin.RECORD if has_record else ProgramOrigin.DEFAULT,
                    record_id=program.record_id if program else "",
                )
            )
        return sorted(rows, key=lambda row: -row.weighted_seconds if math.isfinite(row.best_seconds) else math.inf)

    def find(self, wanted: str) -> list[str]:
        """The kernels whose names begin like this. Raises: OptionError with the nearest names."""
        return find_names(tuple(self._tasks), wanted)

    def slowest(self, number: int) -> list[str]:
        """The kernels that take most of the network's time. Raises: OptionError where no kernel has a record."""
        known = [row for row in self.rows() if row.weighted_seconds]
        if not known:
            raise OptionError(
                f"no kernel of {self._network.name} was measured on this machine: tune it first, or name a kernel"
            )
        return [row.name for row in known[:number]]

    def explain(self, name: str) -> Explanation:
        """One kernel. Takes a second or two, to measure the limits of this machine."""
        task = self._tasks[name]
        program = self._programs.get(task.workload_key)
        here = task.target == Target.host()
        if here and self._limits is None:
            self._limits = measure_limits(self._network.threads)
        seconds = program.seconds if program else math.inf
        # Another way to compute the same serves, or nothing is known: then it is timed here.
        if math.isinf(seconds) and not task.shapes:
            steps = load_steps(program.steps) if program else default_steps_of(task)
            seconds = time_kernel(task, steps, self._network.threads)
        return Explanation(
            task,
            self._uses.get(name, 0),
            program,
            seconds,
            self._nodes(task),
            self._search(task),
            self._limits if here else None,
        )

    def _nodes(self, task: SearchTask) -> str:
        """The lines of the graph that a kernel computes where it is first called."""
        if not isinstance(self._network, ExtractedNetwork):
            return ""
        before = self._network.partition
        of = next((other.of for other in before.alternatives if other.task.name == task.name), task.workload_key)
        for graph, cut, key in ((self._graph, self._cut, task.workload_key), (self._network.graph, before, of)):
            for call in cut.kernels:
                if call.task.workload_key == key:
                    return "\n".join(str(node) for node in graph.nodes if (node.name or node.output) in call.nodes)
        return ""

    def _search(self, task: SearchTask) -> SearchFacts | None:
        scope = record_scope(self._network, None)
        return SearchFacts.of(ParquetRecordStore(self._home).records(task_key=task.workload_key, **scope))
