"""Graph pass that computes layers in the precisions assigned to them.

Before: the float32 graph behind the first half of the pipeline, see `retune.compiler.graph.pipeline.prepare`. After:
operands of a layer in bfloat16 or int8 are encoded where they are computed and decoded where they are read, in pairs
that the later passes turn into integer products or products of halves. Encodings move before operators that move
elements, so values between layers of one precision are stored encoded. Layers in float32 read what they read before.

    y = conv(relu(x), w)    becomes    y = conv(decode(encode(relu(x))), decode(encode(w)))
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.byte_products import byte_product
from retune.compiler.graph.precision.encoding import (
    MIDDLE,
    Bytes,
    Encoding,
    Halves,
    encode_at_run_time,
    quantized_weight,
    times_middle,
)
from retune.compiler.graph.precision.layers import BFLOAT16, DYNAMIC, INT8, MOVES, Assignment, channel_axis, layers_of
from retune.compiler.ops import OPS, POINTWISE

OPERAND_OF = "operand of "
"""What the names of nodes that encode an operand begin with, before the name of the layer."""
_MOST_WIDER = 2.0
"""A value shares the scale of the value that it is moved into up to this ratio of ranges: one bit is lost at most."""


def assign_precisions(graph: Graph, assignment: Assignment) -> Graph:
    """Compute each layer in its precision; `graph` itself where all layers are float32."""
    known = {layer.name: layer for layer in layers_of(graph)}
    forms = {name: form for name, form in assignment.layers.items() if name in known and form in known[name].forms}
    if not forms:
        return graph
    return rewrite(graph, _Writer(graph, forms, _encodings(graph, forms, assignment.ranges)).write)


def _encodings(
    graph: Graph, forms: Mapping[str, str], ranges: Mapping[str, tuple[float, float]]
) -> dict[tuple[str, str], Encoding]:
    """How each value is encoded that layers in bfloat16 or int8 read, by value and precision."""
    producers, encodings = graph.producers(), dict[tuple[str, str], Encoding]()
    symmetric = {
        name: node.op == "batch_matmul"
        for node in graph.nodes
        if forms.get(node.output) == INT8
        for name in node.inputs
    }
    scales = _Scales(graph, ranges)
    for name in symmetric:
        scales.join(name)
    is_signed: dict[str, bool] = {}
    for name, signed in symmetric.items():
        root = scales.root(name)
        is_signed[root] = is_signed.get(root, False) or signed
    for name in graph.values:
        root = scales.root(name)
        if root in is_signed and name in ranges:
            encodings[name, INT8] = Bytes.of(*scales.range(name), is_symmetric=is_signed[root])
    for layer, form in forms.items():
        if form == BFLOAT16:
            encodings |= {(name, BFLOAT16): Halves() for name in producers[layer].inputs}
    return encodings


class _Scales:
    """Disjoint sets of values that share a scale: those that moves of elements connect, if their ranges are alike."""

    def __init__(self, graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> None:
        self._producers = graph.producers()
        self._ranges = dict(ranges)
        self._parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        while (above := self._parent.get(name, name)) != name:
            name = above
        return name

    def range(self, name: str) -> tuple[float, float]:
        return self._ranges[self.root(name)]

    def join(self, name: str) -> None:
        """Unite a value with what moves of elements make it from."""
        node = self._producers.get(name)
        if node is None or node.op not in MOVES:
            return
        for operand in node.inputs:
            self.join(operand)
            if operand in self._ranges and name in self._ranges:
                self._unite(self.root(name), self.root(operand))

    def _unite(self, first: str, second: str) -> None:
        (low, high), (lower, higher) = self._ranges[first], self._ranges[second]
        both = min(low, lower), max(high, higher)
        extents = [high - low, higher - lower]
        if first != second and max(both[1] - both[0], 0.0) <= _MOST_WIDER * min(extents):
            self._parent[second] = first
            self._ranges[first] = both


@dataclass(slots=True)
class _Writer:
    """Rewrites the nodes of a graph, in order; names of values are those of the graph unless they are `new`."""

    graph: Graph
    forms: Mapping[str, str]
    encodings: Mapping[tuple[str, str], Encoding]
    new: dict[str, str] = field(default_factory=dict)
    encoded: dict[tuple[str, Encoding], str] = field(default_factory=dict)
    decoded: dict[tuple[str, Encoding], str] = field(default_factory=dict)
    at_run_time: dict[str, tuple[str, str]] = field(default_factory=dict)
    layer: str = ""
    """The layer whose operands are being encoded."""
    nodes: dict[str, Node] = field(init=False)
    stored: Mapping[str, Encoding] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.graph.producers()
        self.stored = _encoded_values(self.graph, self.forms, self.encodings)

    def write(self, builder: GraphBuilder, node: Node) -> str | None:
        """What replaces a node, see `rewrite`."""
        before = self.nodes[node.output]
        self.new |= dict(zip(before.inputs, node.inputs, strict=True))
        self.layer, form = before.output, self.forms.get(before.output)
        if form is None:
            return self._between(builder, before, node)
        if form == DYNAMIC:
            return self._dynamic(builder, before)
        operands = [self._operand(builder, before, name, form) for name in before.inputs]
        result = builder.emit(node.op, operands, node.attrs, name=before.output, output=node.output)
        if form == INT8:
            return result
        return builder.emit("cast", [result], {"dtype": "float32"}, name=before.output, output=node.output)

    def _between(self, builder: GraphBuilder, before: Node, node: Node) -> str | None:
        """A node between layers reads the encoded form of a value that is stored in no other."""
        reads = [self.stored.get(name) for name in before.inputs]
        if not any(reads) or OPS[before.op].kind not in POINTWISE:
            return None
        operands = [
            new if encoding is None else self._decode(builder, name, encoding)
            for name, new, encoding in zip(before.inputs, node.inputs, reads, strict=True)
        ]
        return builder.emit(node.op, operands, node.attrs, name=node.name, output=node.output)

    def _operand(self, builder: GraphBuilder, layer: Node, name: str, form: str) -> str:
        is_constant = name in self.graph.constants
        if form == BFLOAT16:
            return self._encode(builder, name, Halves())
        if is_constant and layer.op != "batch_matmul":
            return self._weight(builder, layer)
        return self._decode(builder, name, self._bytes(name))

    def _bytes(self, name: str) -> Encoding:
        known = self.encodings.get((name, INT8))
        if known is not None:
            return known
        array = self.graph.constants[name]
        return Bytes.of(float(array.min()), float(array.max()), is_symmetric=True)

    def _weight(self, builder: GraphBuilder, layer: Node) -> str:
        axis = channel_axis(layer.op)
        numbers, scale = quantized_weight(self.graph.constants[layer.inputs[1]], axis)
        zero = np.zeros(scale.shape, np.int8)
        operands = [builder.constant(array, layer.inputs[1]) for array in (numbers, scale, zero)]
        return builder.emit("dequantize", operands, {"axis": axis})

    def _encode(self, builder: GraphBuilder, name: str, encoding: Encoding) -> str:
        """A value as `encoding` stores it; moves of elements move bytes or halves."""
        key = name, encoding
        if key not in self.encoded:
            node = self.nodes.get(name)
            if node is not None and node.op in MOVES and self._moves(node, encoding):
                operands = [self._encode(builder, operand, encoding) for operand in node.inputs]
                self.encoded[key] = builder.emit(node.op, operands, node.attrs, name=OPERAND_OF + self.layer)
            else:
                self.encoded[key] = encoding.encode(builder, self._new_name(name), OPERAND_OF + self.layer)
        return self.encoded[key]

    def _moves(self, node: Node, encoding: Encoding) -> bool:
        """Whether an encoding moves before `node`: always into a concatenation, else if the operand has it, too."""
        if isinstance(encoding, Halves) or node.op == "concat":
            return True
        return all(self.encodings.get((name, INT8)) == encoding for name in node.inputs)

    def _new_name(self, name: str) -> str:
        return self.new.get(name, name)

    def _decode(self, builder: GraphBuilder, name: str, encoding: Encoding) -> str:
        key = name, encoding
        if key not in self.decoded:
            self.decoded[key] = encoding.decode(builder, self._encode(builder, name, encoding))
        return self.decoded[key]

    def _dynamic(self, builder: GraphBuilder, layer: Node) -> str:
        """A product of bytes whose scale is computed: for each row of a matrix, or each image."""
        name, axis = layer.inputs[0], channel_axis(layer.op)
        rank = len(self.graph.values[name].shape)
        if name not in self.at_run_time:
            label = OPERAND_OF + self.layer
            self.at_run_time[name] = encode_at_run_time(builder, self._new_name(name), tuple(range(1, rank)), label)
        numbers, scale = self.at_run_time[name]
        weight, factors = quantized_weight(self.graph.constants[layer.inputs[1]], axis)
        column = [-1 if number == 1 else 1 for number in range(rank)]
        sums = times_middle(weight, axis).reshape(column)
        whole = byte_product(builder, layer, numbers, weight, MIDDLE, name=layer.output)
        whole = builder.emit("sub", [whole, builder.constant(sums, "zeros")])
        real = builder.emit("cast", [whole], {"dtype": "float32"})
        real = builder.emit("mul", [real, builder.constant(factors.reshape(column), "scale")])
        return builder.emit("mul", [real, scale], name=layer.output, output=layer.output)


def _encoded_values(
    graph: Graph, forms: Mapping[str, str], encodings: Mapping[tuple[str, str], Encoding]
) -> dict[str, Encoding]:
    """The values that element-wise operators read encoded, because nothing else needs them in float32: all their
    readers are layers that encode them, or lead to encoded values only.
    """
    readers, visible = graph.consumers(), set(graph.outputs)
    by_value: dict[str, Encoding] = {}
    for node in graph.nodes:
        form = forms.get(node.output)
        if form in (BFLOAT16, INT8):
            for name in node.inputs:
                by_value.setdefault(name, encodings.get((name, form), Halves()))
    leads: dict[str, bool] = {}

    def is_encoded(name: str) -> bool:
        if name not in leads:
            leads[name] = name not in visible and bool(readers[name]) and all(map(takes, readers[name]))
        return leads[name] or name in by_value

    def takes(node: Node) -> bool:
        """Whether a reader does not need float32."""
        if node.output in forms:
            return forms[node.output] in (BFLOAT16, INT8)
        return (OPS[node.op].kind in POINTWISE or node.op in MOVES) and is_encoded(node.output)

    # Backward, so that what is read has been visited: the recursion is one level deep.
    for node in reversed(graph.nodes):
        is_encoded(node.output)
    return {
        name: encoding
        for name, encoding in by_value.items()
        if name not in graph.constants and name not in visible and all(map(takes, readers[name]))
    }
