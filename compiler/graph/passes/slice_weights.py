"""In: products with constant weights of which slices are read, as the queries, keys and values of one projection.
Out: a product with a part of the weights for each slice.

Always: no more is computed than before; what is read as a whole stays whole.
"""

from dataclasses import dataclass
from math import prod

from compiler.graph.builder import GraphBuilder, rewrite
from compiler.graph.ir import Graph, Node
from compiler.graph.ops import OPS, FusionKind
from compiler.graph.passes.layout_rules import aligned_axes


@dataclass(frozen=True, slots=True)
class SliceWeights:
    """Move slices up through reshapes, element-wise operators and products, at most `rounds` of them.

    before: y = dense(x, w); q = slice(y, 0:8); k = slice(y, 8:16)
    after:  q = dense(x, w[:, 0:8]); k = dense(x, w[:, 8:16])
    """

    name: str = "slice_weights"
    rounds: int = 16

    def apply(self, graph: Graph) -> Graph:
        """The graph without slices of products."""
        for _ in range(self.rounds):
            before = str(graph)
            graph = _once(graph)
            if str(graph) == before:
                break
        return graph


def _once(graph: Graph) -> Graph:
    producers, consumers = graph.producers(), graph.consumers()

    def cut_only(name: str) -> bool:
        readers = consumers[name]
        slices = name not in graph.outputs and all(reader.op == "slice" for reader in readers)
        return slices and sum(graph.values[one.output].size for one in readers) <= graph.values[name].size

    def from_product(name: str) -> bool:
        """Whether the slice can get as far as a product with constant weights."""
        node = producers.get(name)
        while node is not None and node.op != "dense":
            moves = node.op == "reshape" or (_is_pointwise(node) and _constants_behind(graph, node))
            node = producers.get(node.inputs[0]) if moves and _read_by_one(graph, consumers, node.inputs[0]) else None
        return node is not None and node.inputs[1] in graph.constants

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        if node.op != "slice" or set(node.ints("steps")) != {1}:
            return None
        original = producers[node.output].inputs[0]
        if not cut_only(original) or not from_product(original):
            return None
        source = builder.producer(node.inputs[0])
        if source is None:
            return None
        if source.op == "reshape":
            return _before_reshape(builder, node, source)
        return _of_weights(builder, node, source) if source.op == "dense" else _before_pointwise(builder, node, source)

    return rewrite(graph, convert)


def _is_pointwise(node: Node) -> bool:
    return OPS[node.op].kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)


def _constants_behind(graph: Graph, node: Node) -> bool:
    """Whether an element-wise operator combines a tensor of its result's shape with constants alone."""
    alike = graph.values[node.inputs[0]].shape == graph.values[node.output].shape
    return alike and all(name in graph.constants for name in node.inputs[1:])


def _read_by_one(graph: Graph, consumers: dict[str, tuple[Node, ...]], name: str) -> bool:
    return len(consumers[name]) == 1 and name not in graph.outputs


def _range(builder: GraphBuilder, node: Node) -> tuple[int, int, int] | None:
    """The only axis of which the slice takes a part, where that begins and where it ends."""
    shape = builder.value(node.inputs[0]).shape
    bounds = zip(shape, node.ints("starts"), node.ints("stops"), strict=True)
    cut = [(axis, start, stop) for axis, (extent, start, stop) in enumerate(bounds) if stop - start != extent]
    return cut[0] if len(cut) == 1 else None


def _slice(builder: GraphBuilder, x: str, axis: int, start: int, stop: int) -> str:
    shape = builder.value(x).shape
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": (1,) * len(shape)}
    return builder.emit("slice", [x], attrs, output=f"{x}_part")


def _before_reshape(builder: GraphBuilder, node: Node, source: Node) -> str | None:
    """slice(reshape(x)) -> reshape(slice(x)), where the part is one block of x along one axis."""
    part = _range(builder, node)
    if part is None:
        return None
    axis, start, stop = part
    before, after = (builder.value(name).shape for name in (source.inputs[0], source.output))
    for new, old in aligned_axes(after, before):
        if axis not in new:
            continue
        if prod(after[place] for place in new if place < axis) != 1:
            return None
        wide = [place for place in old if before[place] != 1]
        below = prod(after[place] for place in new if place > axis)
        row = prod(before[place] for place in wide[1:])
        if not wide or (start * below) % row or (stop * below) % row:
            return None
        cut = _slice(builder, source.inputs[0], wide[0], start * below // row, stop * below // row)
        shape = (*after[:axis], stop - start, *after[axis + 1 :])
        return builder.emit("reshape", [cut], {"shape": shape}, name=source.name, output=node.output)
    return None


def _before_pointwise(builder: GraphBuilder, node: Node, source: Node) -> str | None:
    """slice(f(x, c)) -> f(slice(x), slice(c))."""
    part = _range(builder, node)
    if part is None:
        return None
    axis, start, stop = part
    rank = len(builder.value(source.output).shape)
    operands = []
    for name in source.inputs:
        shape = builder.value(name).shape
        own = axis - (rank - len(shape))
        operands.append(name if own < 0 or shape[own] == 1 else _slice(builder, name, own, start, stop))
    return builder.emit(source.op, operands, source.attrs, name=source.name, output=node.output)


def _of_weights(builder: GraphBuilder, node: Node, source: Node) -> str | None:
    """slice(dense(x, w)) -> dense(x, slice(w))."""
    part = _range(builder, node)
    if part is None or part[0] != 1:
        return None
    weight = _slice(builder, source.inputs[1], *part)
    return builder.emit("dense", [source.inputs[0], weight], name=source.name, output=node.output)
