"""The error at the outputs that each layer causes alone in each precision.

Two compiled graphs measure all layers: the first computes the layers apart, in a precision, from operands in float32;
the second is the float32 network with an input added to the result of every layer. The error of a layer, added there,
runs through the rest of the network in float32. Kernels before it run once for all layers, in the order of the network.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node, Value
from retune.compiler.graph.precision.assign import assign_precisions
from retune.compiler.graph.precision.layers import Assignment, Layer
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.placement import HOST
from retune.compiler.runtime.executor.plan import BufferKind
from retune.compiler.tune.precision.bench import Bench, run
from retune.compiler.tune.precision.calibrate import Ranges
from retune.compiler.tune.precision.errors import error_of
from retune.compiler.tune.precision.request import Metric
from retune.compiler.tune.precision.samples import Sample

_ADDED = "error_of_"
"""Prefix of the inputs that errors are added by."""

Unit = tuple[str, ...]
"""Layers whose precision is chosen together."""


def units_of(layers: Sequence[Layer], together: Iterable[Sequence[str]]) -> list[Unit]:
    """Layers in the groups whose precision is chosen together: matrix products that share an operand, and layers
    that share a kernel.
    """
    parent = {layer.name: layer.name for layer in layers}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    readers: dict[tuple[str, ...], str] = {}
    for layer in layers:
        if layer.op == "dense":
            parent[root(layer.name)] = root(readers.setdefault(layer.operands, layer.name))
    for names in together:
        for name in names[1:]:
            parent[root(name)] = root(names[0])
    units: dict[str, list[str]] = {}
    for layer in layers:
        units.setdefault(root(layer.name), []).append(layer.name)
    return [tuple(names) for names in units.values()]


def with_added_errors(graph: Graph, layers: Sequence[str]) -> Graph:
    """The graph with an input for each layer, added to its result; results of layers are outputs, too."""
    known = frozenset(layers)
    inputs = (*graph.inputs, *(Value(_ADDED + name, graph.values[name].shape, "float32") for name in layers))
    more = Graph(
        graph.name,
        inputs,
        graph.outputs,
        graph.nodes,
        graph.constants,
        {**graph.values, **{value.name: value for value in inputs}},
    )

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        if node.output not in known:
            return None
        result = builder.emit(node.op, node.inputs, node.attrs, name=node.name)
        return builder.emit("add", [result, _ADDED + node.output], output=node.output)

    return rewrite(more, convert)


def layers_apart(graph: Graph, layers: Sequence[str]) -> tuple[Graph, dict[str, str]]:
    """A graph whose inputs are the operands of layers and whose outputs are their results, and the operand of each
    input.
    """
    producers = graph.producers()
    builder, inputs, results = GraphBuilder(f"{graph.name}_layers"), dict[str, str](), dict[str, str]()
    for name in layers:
        node, operands = producers[name], []
        for operand in node.inputs:
            if operand in graph.constants:
                operands.append(builder.constant(graph.constants[operand], operand))
                continue
            if operand not in inputs:
                value = graph.values[operand]
                inputs[operand] = builder.input(Value(f"operand_{len(inputs)}", value.shape, value.dtype))
            operands.append(inputs[operand])
        results[name] = builder.emit(node.op, operands, node.attrs, name=node.name, output=name)
    return builder.finish(results), {new: operand for operand, new in inputs.items()}


class _Suffixes:
    """Runs a network from `with_added_errors`, whose other inputs are set, again and again from where an error is
    added: what the kernels before computed is kept.
    """

    def __init__(self, executor: GraphExecutor) -> None:
        self.executor = executor
        plan = executor.network.plan
        self._calls = executor.calls_on(HOST)
        self._touched = [{plan.buffers[number].storage for number in call.buffers} for call in plan.calls]
        self._intermediates = [
            number
            for number, buffer in enumerate(plan.buffers)
            if buffer.kind is BufferKind.INTERMEDIATE and buffer.storage == number
        ]
        names = {number: plan.buffers[number].name for number in plan.inputs}
        self._zeros = {
            name: np.zeros(plan.buffers[number].shape, np.float32)
            for number, name in names.items()
            if name.startswith(_ADDED)
        }
        executor.set_input(**self._zeros)
        count = len(self._calls)  # of a layer that no output depends on
        self._first = {
            name.removeprefix(_ADDED): next((i for i, roots in enumerate(self._touched) if number in roots), count)
            for number, name in names.items()
            if name in self._zeros
        }

    def outputs_with(self, errors: Mapping[str, Array], units: Sequence[Unit]) -> Iterator[tuple[Unit, list[Array]]]:
        """Each unit, and the outputs where the errors of its layers are added."""
        executor, begun = self.executor, 0
        for first, unit in sorted((min(self._first[layer] for layer in unit), unit) for unit in units):
            self._run(begun, first)
            begun = first
            kept = [(array, array.copy()) for array in self._alive(first)]
            added = {_ADDED + layer: errors[layer] for layer in unit}
            executor.set_input(**added)
            self._run(first, len(self._calls))
            yield unit, [executor.get_output(index) for index in range(executor.get_num_outputs())]
            executor.set_input(**{name: self._zeros[name] for name in added})
            for array, before in kept:
                np.copyto(array, before)

    def _run(self, first: int, last: int) -> None:
        for call in self._calls[first:last]:
            call()

    def _alive(self, first: int) -> list[Array]:
        """The intermediate values that calls before `first` compute and later calls read."""
        before, after = set().union(*self._touched[:first]), set().union(*self._touched[first:])
        return [self.executor.value(number) for number in self._intermediates if number in before & after]


@dataclass(slots=True)
class Sensitivity:
    """Measures errors of units of layers on a few samples."""

    bench: Bench
    ranges: Ranges
    metric: str | Metric
    samples: Sequence[Sample]

    def measure(self, forms: Mapping[str, Sequence[Unit]]) -> dict[tuple[Unit, str], float]:
        """The error at the outputs of each unit in each precision that `forms` has it under."""
        layers = list(dict.fromkeys(layer for units in forms.values() for unit in units for layer in unit))
        network = _Suffixes(self.bench.compile(with_added_errors(self.bench.graph, layers)))
        worst: dict[tuple[Unit, str], float] = {}
        for form, units in forms.items():
            own = list(dict.fromkeys(layer for unit in units for layer in unit))
            apart, operands = self._apart(own, form)
            for sample in self.samples:
                values = self.bench.observe(sample)
                results = run(apart, {new: values[name] for new, name in operands.items()})
                errors = {layer: result - values[layer] for layer, result in zip(own, results, strict=True)}
                del values, results  # as large as all activations together
                reference = run(network.executor, sample)
                for unit, outputs in network.outputs_with(errors, units):
                    error = error_of(self.metric, [outputs], [reference])
                    worst[unit, form] = max(error, worst.get((unit, form), 0.0))
        return worst

    def _apart(self, layers: Sequence[str], form: str) -> tuple[GraphExecutor, dict[str, str]]:
        graph, operands = layers_apart(self.bench.graph, layers)
        ranges = {new: self.ranges[name] for new, name in operands.items() if name in self.ranges}
        assignment = Assignment(dict.fromkeys(layers, form), ranges)
        return self.bench.compile(assign_precisions(graph, assignment)), operands
