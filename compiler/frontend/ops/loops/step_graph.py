"""Graphs of one step of a loop, and their translation into the operator `scan`.

A step takes its number, states, rows of sequences, and values that all steps read; it makes the next states and rows of
results. A `scan` packs results of one type, so results of several types are several loops, each with the states that
its results need.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.frontend.ops.indexing import cut
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Graph, Node, Value
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ops import OPS, FusionKind
from retune.compiler.ops.scan import COUNTER, Body, BodyNode, Source

_MOST_BYTES = 2**28
"""Most bytes of the states of all steps, which a kernel holds even if only the last is a result."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A sequence: the rows along `axis` of the value `name`, from the first or from the last on."""

    name: str
    axis: int
    is_reversed: bool


@dataclass(frozen=True, slots=True)
class StepGraph:
    """A loop of `steps` steps.

    `graph` takes the step's number, the states, the rows, and the values `others`, in this order. It makes the next
    states, then the rows of results. `states` are the first states, `backward` tells of each row of results whether the
    last step's is the first.
    """

    graph: Graph
    steps: int
    states: tuple[str, ...]
    sequences: tuple[Rows, ...]
    others: tuple[str, ...]
    backward: tuple[bool, ...]
    label: str = ""

    def emit(self, builder: GraphBuilder, wanted: Sequence[bool]) -> list[str]:
        """Emit the loop. Returns the wanted results: last states (...), and rows (T, ...); "" for the others.

        Raises: DefinitionError when a node has no tensor expression, or a state changes its shape or type.
        """
        results, values = [""] * len(self.graph.outputs), self.graph.output_values()
        shown = [number for number, is_wanted in enumerate(wanted) if is_wanted]
        for dtype in dict.fromkeys(values[number].dtype for number in shown):
            packed = [number for number in shown if values[number].dtype == dtype]
            for number, name in zip(packed, _emit_packed(builder, self, packed), strict=True):
                results[number] = name
        return results


class StepBuilder:
    """Writes the graph of a step into `builder`.

    `number`, `states` and `rows` are its inputs; `capture` gives those values of the graph around the loop that steps
    read whole.
    """

    def __init__(self, outer: GraphBuilder, states: Sequence[str], sequences: Sequence[Rows]) -> None:
        self._outer, self._first, self._sequences = outer, tuple(states), tuple(sequences)
        self._others: dict[str, str] = {}
        self.builder = GraphBuilder("step")
        self.number = self.builder.input(Value("step", (), COUNTER))
        self.states = [self._input(f"state{i}", outer.value(name)) for i, name in enumerate(states)]
        self.rows = [self._input(f"row{i}", outer.value(rows.name), rows.axis) for i, rows in enumerate(sequences)]

    def _input(self, name: str, value: Value, axis: int | None = None) -> str:
        shape = value.shape if axis is None else (*value.shape[:axis], *value.shape[axis + 1 :])
        return self.builder.input(Value(name, shape, value.dtype))

    def capture(self, name: str) -> str:
        """The value `name` of the graph around the loop: a constant if its content is known."""
        # Weights of few bits stay as they are: the operator that widens them is no constant.
        array = self._outer.array(name) if self._outer.producer(name) is None else None
        if name not in self._others:
            self._others[name] = (
                self._input(f"other{len(self._others)}", self._outer.value(name))
                if array is None
                else self.builder.constant(array, name)
            )
        return self._others[name]

    def finish(
        self, states: Sequence[str], rows: Sequence[str], backward: Sequence[bool], steps: int, label: str
    ) -> StepGraph:
        """The loop over `steps` steps with the next states and the rows of results."""
        graph = self.builder.finish({f"result{i}": name for i, name in enumerate((*states, *rows))})
        inputs = {value.name for value in graph.inputs}
        others = tuple(outer for outer, inner in self._others.items() if inner in inputs)
        return StepGraph(optimize(graph), steps, self._first, self._sequences, others, tuple(backward), label)


def _emit_packed(builder: GraphBuilder, step: StepGraph, shown: Sequence[int]) -> list[str]:
    """Emit a loop with the results `shown`, which have one type, and take them apart."""
    graph, first = step.graph, len(step.states)
    kept = _states_for(step, shown)
    rows = [number for number in shown if number >= first]
    results = [graph.outputs[number] for number in (*kept, *rows)]
    _check_bytes(step, kept)
    body, operands, sequences = _number(builder, step, kept, results)
    order = [*kept, *rows]
    attrs: dict[str, Attribute] = {
        "body": body.to_text(),
        "steps": step.steps,
        "states": len(kept),
        "axes": tuple(sequence.axis for sequence in sequences),
        "reverse": tuple(int(sequence.is_reversed) for sequence in sequences),
        "shown": tuple(order.index(number) for number in shown),
        "backward": tuple(int(number >= first and step.backward[number - first]) for number in shown),
    }
    packed = builder.emit("scan", operands, attrs, name=step.label)
    return _unpack(builder, step, packed, shown)


def _check_bytes(step: StepGraph, kept: Sequence[int]) -> None:
    sizes = [step.graph.values[step.graph.outputs[number]].nbytes for number in kept]
    total = (step.steps + 1) * sum(sizes)
    if isinstance(total, int) and total > _MOST_BYTES:
        raise DefinitionError(f"the states of all {step.steps} steps take more than {_MOST_BYTES >> 20} MiB")


def _states_for(step: StepGraph, shown: Sequence[int]) -> list[int]:
    """The numbers of the states that the results `shown` depend on, through any number of steps."""
    producers, count = step.graph.producers(), len(step.states)
    inputs = {value.name: number for number, value in enumerate(step.graph.inputs[1 : 1 + count])}
    kept = {number for number in shown if number < count}
    pending = [step.graph.outputs[number] for number in shown]
    seen = set(pending)
    while pending:
        name = pending.pop()
        read = [*producers[name].inputs] if name in producers else []
        if name in inputs:
            kept.add(inputs[name])
            read.append(step.graph.outputs[inputs[name]])
        pending += [other for other in read if other not in seen]
        seen.update(read)
    return sorted(kept)


def _number(
    builder: GraphBuilder, step: StepGraph, kept: Sequence[int], results: Sequence[str]
) -> tuple[Body, list[str], list[Rows]]:
    """The body with numbers for values, the operands of `scan`, and the sequences that it reads."""
    graph = step.graph
    nodes = _alive(graph, results)
    read = {name for node in nodes for name in node.inputs} | {*results}
    first_row, first_other = 1 + len(step.states), 1 + len(step.states) + len(step.sequences)
    rows = [number for number in range(len(step.sequences)) if graph.inputs[first_row + number].name in read]
    others = [value.name for value in graph.inputs[first_other:]]
    fixed = [name for name in graph.constants if name in read and not _is_literal(graph, nodes, name)]
    names = [graph.inputs[0].name]
    names += [graph.inputs[1 + number].name for number in kept]
    names += [graph.inputs[first_row + number].name for number in rows]
    operands = [step.states[number] for number in kept] + [step.sequences[number].name for number in rows]
    for name, outer in zip(others, step.others, strict=True):
        if name in read:
            names.append(name)
            operands.append(outer)
    names += fixed
    operands += [builder.constant(graph.constants[name], name) for name in fixed]
    numbers = {name: number for number, name in enumerate(names)}
    calls: list[BodyNode] = []

    def source(name: str) -> Source:
        if name in numbers:
            return numbers[name]
        array = graph.constants[name]
        return te.const(array.reshape(()).item(), array.dtype.name)

    for node in nodes:
        # Results that are one value are so to `scan`, too.
        if node.op == "identity" and node.inputs[0] in numbers:
            numbers[node.output] = numbers[node.inputs[0]]
            continue
        numbers[node.output] = len(names) + len(calls)
        calls.append(BodyNode(node.op, tuple(source(name) for name in node.inputs), node.attrs))

    body = Body(tuple(calls), tuple(numbers[name] for name in results))
    return body, operands, [step.sequences[number] for number in rows]


def _alive(graph: Graph, results: Sequence[str]) -> list[Node]:
    needed, nodes = {*results}, []
    for node in reversed(graph.nodes):
        if node.output in needed:
            nodes.append(node)
            needed.update(node.inputs)
    return nodes[::-1]


def _is_literal(graph: Graph, nodes: Sequence[Node], name: str) -> bool:
    """Whether a constant is a number that only operators read which take it beside a tensor."""
    array, readers = graph.constants[name], [node for node in nodes if name in node.inputs]
    return array.size == 1 and all(
        OPS[node.op].kind is FusionKind.BROADCAST
        and any(other not in graph.constants and len(graph.values[other].shape) >= array.ndim for other in node.inputs)
        for node in readers
    )


def _unpack(builder: GraphBuilder, step: StepGraph, packed: str, shown: Sequence[int]) -> list[str]:
    results, start = [], 0
    values = [step.graph.output_values()[number] for number in shown]
    is_flat = len({value.shape for value in values}) > 1
    for number, value in zip(shown, values, strict=True):
        is_state = number < len(step.states)
        count = (1 if is_state else step.steps) * (math.prod(value.shape) if is_flat else 1)
        part = packed if len(shown) == 1 else cut(builder, packed, 0, start, start + count)
        start += count
        shape = value.shape if is_state else (step.steps, *value.shape)
        results.append(builder.emit("reshape", [part], {"shape": shape}))
    return results
