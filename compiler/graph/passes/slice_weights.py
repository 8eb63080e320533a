"""Splits the constant weights of products whose results are read in slices, such as queries, keys and values.

Each slice gets a product with its part of the weights, so no values are copied and the amount of computation is the
same. A product that is also read as a whole is not split.
"""

from functools import cache

from retune.compiler.graph.builder import GraphBuilder, rewrite, rewrite_until_stable
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.slice_rules import sink_reshape_of_slice, sliced_axis
from retune.compiler.graph.passes.rules.views import cut
from retune.compiler.ops import OPS, FusionKind

_ROUNDS = 16
"""A round moves a slice past one node."""


def slice_weights(graph: Graph) -> Graph:
    """Move slices up through reshapes, element-wise operators and products.

    before: y = dense(x, w); q = slice(y, 0:8); k = slice(y, 8:16)
    after:  q = dense(x, w[:, 0:8]); k = dense(x, w[:, 8:16])
    """
    return rewrite_until_stable(graph, _move_slices, _ROUNDS)


def _move_slices(graph: Graph) -> Graph:
    producers, consumers = graph.producers(), graph.consumers()

    @cache
    def cut_only(name: str) -> bool:
        readers = consumers[name]
        slices = name not in graph.outputs and all(reader.op == "slice" for reader in readers)
        # Overlapping slices would compute their common part twice.
        return slices and sum(graph.values[reader.output].size for reader in readers) <= graph.values[name].size

    @cache
    def from_product(name: str) -> bool:
        """Whether the slice can move up to a product with constant weights."""
        node = producers.get(name)
        # Checked before anything moves: a slice that stopped halfway would only split kernels.
        while node is not None and node.op != "dense":
            moves = node.op == "reshape" or (_is_pointwise(node) and _constants_behind(graph, node))
            node = producers.get(node.inputs[0]) if moves and _read_by_one(graph, consumers, node.inputs[0]) else None
        return node is not None and node.inputs[1] in graph.constants

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        if node.op != "slice":
            return None
        original = producers[node.output].inputs[0]
        if not cut_only(original) or not from_product(original):
            return None
        source = builder.producer(node.inputs[0])
        if source is None:
            return None
        if source.op == "reshape":
            return sink_reshape_of_slice(builder, node)
        return _of_weights(builder, node, source) if source.op == "dense" else _before_pointwise(builder, node, source)

    return rewrite(graph, convert)


def _is_pointwise(node: Node) -> bool:
    # Each element of a byte may read any part of a table.
    return node.op != "lookup" and OPS[node.op].kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)


def _constants_behind(graph: Graph, node: Node) -> bool:
    """Whether an element-wise operator combines a tensor of its result's shape with constants alone."""
    alike = graph.values[node.inputs[0]].shape == graph.values[node.output].shape
    return alike and all(name in graph.constants for name in node.inputs[1:])


def _read_by_one(graph: Graph, consumers: dict[str, tuple[Node, ...]], name: str) -> bool:
    return len(consumers[name]) == 1 and name not in graph.outputs


def _before_pointwise(builder: GraphBuilder, node: Node, source: Node) -> str | None:
    """slice(f(x, c)) -> f(slice(x), slice(c))."""
    part = sliced_axis(builder, node)
    if part is None:
        return None
    axis, start, stop = part
    rank = len(builder.value(source.output).shape)
    operands = []
    for name in source.inputs:
        shape = builder.value(name).shape
        own = axis - (rank - len(shape))
        operands.append(name if own < 0 or shape[own] == 1 else cut(builder, name, own, start, stop))
    return builder.emit(source.op, operands, source.attrs, name=source.name, output=node.output)


def _of_weights(builder: GraphBuilder, node: Node, source: Node) -> str | None:
    """slice(dense(x, w)) -> dense(x, slice(w))."""
    part = sliced_axis(builder, node)
    if part is None or part[0] != 1:
        return None
    weight = cut(builder, source.inputs[1], *part)
    return builder.emit("dense", [source.inputs[0], weight], name=source.name, output=node.output)
