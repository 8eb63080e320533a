"""The error at the outputs that each layer causes alone in each precision.

Two compiled graphs measure all layers: the first computes the layers apart, in a precision, from operands in float32;
the second is the float32 network with an input added to the result of every layer. The error of a layer, added there,
runs through the rest of the network in float32.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node, Value
from retune.compiler.graph.precision.assign import assign_precisions
from retune.compiler.graph.precision.layers import Assignment, Layer
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
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
        graph.name, inputs, graph.outputs, graph.nodes, graph.constants,
        {**graph.values, **{value.name: value for value in inputs}},
    )  # fmt: skip

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
        graph, zeros = self.bench.graph, {}
        executor = self.bench.compile(with_added_errors(graph, layers))
        for name in layers:
            zeros[_ADDED + name] = np.zeros(graph.values[name].shape, np.float32)
        executor.set_input(**zeros)
        observed = [self.bench.observe(sample) for sample in self.samples]
        worst: dict[tuple[Unit, str], float] = {}
        for form, units in forms.items():
            own = list(dict.fromkeys(layer for unit in units for layer in unit))
            apart, operands = self._apart(own, form)
            for sample, values in zip(self.samples, observed, strict=True):
                reference = run(executor, sample)
                results = run(apart, {new: values[name] for new, name in operands.items()})
                errors = {layer: result - values[layer] for layer, result in zip(own, results, strict=True)}
                for unit in units:
                    added = {_ADDED + layer: errors[layer] for layer in unit}
                    outputs = run(executor, {**sample, **added})
                    executor.set_input(**{name: zeros[name] for name in added})
                    error = error_of(self.metric, [outputs], [reference])
                    worst[unit, form] = max(error, worst.get((unit, form), 0.0))
        return worst

    def _apart(self, layers: Sequence[str], form: str) -> tuple[GraphExecutor, dict[str, str]]:
        graph, operands = layers_apart(self.bench.graph, layers)
        ranges = {new: self.ranges[name] for new, name in operands.items() if name in self.ranges}
        assignment = Assignment(dict.fromkeys(layers, form), ranges)
        return self.bench.compile(assign_precisions(graph, assignment)), operands
