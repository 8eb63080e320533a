"""Compiles one network in several forms, runs them on samples, and times their kernels within the network.

A form is the network with one assignment of precisions to its layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import BuildError, ChosenProgram, reuse_kernels
from retune.compiler.driver.parallel_build import build_in_parallel
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.memoize import SharedConstants, cache_constants
from retune.compiler.graph.precision.assign import OPERAND_OF, assign_precisions
from retune.compiler.graph.precision.layers import Assignment, layers_of, values_read
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.timing import TimeEvaluator
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.tune.extract import extract_part
from retune.compiler.tune.precision.samples import Sample

_ROUNDS = 4
"""How often each form is timed, in turn, so that a noisy moment hits all forms alike."""
_KEPT = 1.0
"""Most bytes of the compiled forms that are kept, beside what they share with float32, relative to the constants of the
graph: a choice is run, timed, and timed again.
"""
_MOST_REPEATS, _LEAST_REPEATS, _PASS_SECONDS = 10, 3, 0.05
"""Runs of a network in one pass: as many as take so long, between these bounds."""


@dataclass(slots=True)
class Bench:
    """Compiles forms of `graph`, a network before the passes, for `threads` threads of this machine.

    `best` are the best known programs by workload key. `kernels` are those built so far, by workload key and steps.
    """

    graph: Graph
    target: Target
    threads: int
    winograd: bool = True
    best: Mapping[str, TaskProgram] = field(default_factory=dict)
    kernels: dict[tuple[str, str], KernelArtifact] = field(default_factory=dict)
    _exact: GraphExecutor | None = None
    _forms: list[tuple[Assignment, GraphExecutor]] = field(default_factory=list)
    _observer: tuple[tuple[str, ...], GraphExecutor] | None = None
    _constants: SharedConstants = field(default_factory=SharedConstants)

    def compile(self, graph: Graph) -> GraphExecutor:
        """An executor of a graph before the passes. It shares constants with others."""
        graph = replace(graph, constants=dict(graph.constants))  # which the compilation releases
        with cache_constants(self._constants):
            extracted = extract_part(graph.name, graph, self.target, self.threads, self.winograd)
            network = extracted.compile(self.best, build=self._build, release=True)
        return executor_of(network, self.threads)

    def compile_form(self, assignment: Assignment) -> GraphExecutor:
        """An executor of the network with layers in the precisions of `assignment`. The last executors are kept."""
        if not assignment.layers:
            return self.float32()
        for number, (known, executor) in enumerate(self._forms):
            if known == assignment:
                self._forms.append(self._forms.pop(number))
                return executor
        executor = self.compile(assign_precisions(self.graph, assignment))
        self._forms.append((assignment, executor))
        most = _KEPT * sum(array.nbytes for array in self.graph.constants.values())
        while len(self._forms) > 1 and self._kept_bytes() > most:
            del self._forms[0]
        return executor

    def _kept_bytes(self) -> int:
        """Bytes that the kept forms hold beside the network in float32."""
        networks = [executor.network for _, executor in self._forms]
        constants = {id(array): array.nbytes for network in networks for array in network.constants.values()}
        for array in self.float32().network.constants.values():
            constants.pop(id(array), None)
        return sum(constants.values()) + sum(network.plan.arena_bytes for network in networks)

    def float32(self) -> GraphExecutor:
        """An executor of the network in float32, which is compiled once."""
        self._exact = self._exact or self.compile(self.graph)
        return self._exact

    def observe(self, sample: Sample) -> dict[str, Array]:
        """What layers read and compute in float32, and what the operands are moved from, by name of the value."""
        if self._observer is None:
            layers, fed = layers_of(self.graph), {value.name for value in self.graph.inputs}
            read = (*(name for layer in layers for name in layer.operands), *values_read(self.graph))
            names = dict.fromkeys((*self.graph.outputs, *read, *(layer.name for layer in layers)))
            outputs = tuple(name for name in names if name not in fed or name in self.graph.outputs)
            self._observer = outputs, self.compile(replace(self.graph, outputs=outputs))
        outputs, executor = self._observer
        return {**sample, **dict(zip(outputs, run(executor, sample), strict=True))}

    def _build(self, programs: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
        built = reuse_kernels(self.kernels, build_in_parallel)(programs)
        for program, kernel in zip(programs, built, strict=True):
            if isinstance(kernel, KernelArtifact):
                self.kernels[program.task.workload_key, dump_steps(program.steps)] = kernel
        return list(built)


def run(executor: GraphExecutor, sample: Sample) -> list[Array]:
    """The outputs of a network."""
    executor.run(**sample)
    return [executor.get_output(index) for index in range(executor.get_num_outputs())]


def seconds_in_turn(executors: Sequence[GraphExecutor], rounds: int = _ROUNDS) -> list[float]:
    """Seconds of a run of each network: the least of the medians of several passes."""
    evaluators = [_evaluator(executor) for executor in executors]
    pairs = list(zip(executors, evaluators, strict=True))
    passes = [[executor.benchmark(evaluator).median for executor, evaluator in pairs] for _ in range(rounds)]
    return [min(seconds) for seconds in zip(*passes, strict=True)]


def _evaluator(executor: GraphExecutor) -> TimeEvaluator:
    """How to time a pass of a network, by the time that one run takes."""
    seconds = executor.benchmark(TimeEvaluator()).median
    repeat = min(max(round(_PASS_SECONDS / seconds), _LEAST_REPEATS), _MOST_REPEATS)
    return TimeEvaluator(repeat=repeat, min_repeat_ms=1)


def times_of_layers(forms: Mapping[str, GraphExecutor], layers: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds of every layer in every form, the least of several passes. A kernel counts for the layers that it
    computes, in equal parts; a kernel that encodes an operand counts for the layer that reads it.
    """
    known, times = frozenset(layers), dict[str, dict[str, float]]()
    for _ in range(_ROUNDS):
        for form, executor in forms.items():
            passed: dict[str, float] = {}
            for call in executor.profile(repeat=3):
                owners = owners_of(call.label, known)
                for layer in owners:
                    passed[layer] = passed.get(layer, 0.0) + call.seconds / len(owners)
            least = times.setdefault(form, passed)
            least |= {layer: min(seconds, least.get(layer, np.inf)) for layer, seconds in passed.items()}
    return times


def owners_of(label: str, layers: frozenset[str]) -> list[str]:
    """The layers that a kernel with this label computes, else those whose operands it encodes."""
    names = label.split(" + ")
    owners = [name for name in dict.fromkeys(names) if name in layers]
    read = dict.fromkeys(name.removeprefix(OPERAND_OF) for name in names if name.startswith(OPERAND_OF))
    return owners or [name for name in read if name in layers]


def kernels_together(executors: Mapping[str, GraphExecutor], layers: Sequence[str]) -> Iterator[list[str]]:
    """Layers that one kernel computes in some form, such as the two products of an attention."""
    known = frozenset(layers)
    for executor in executors.values():
        for call in executor.network.plan.calls:
            owners = [name for name in dict.fromkeys(call.label.split(" + ")) if name in known]
            if len(owners) > 1:
                yield owners
