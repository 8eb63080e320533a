"""Scales the weights of 1x1 convolutions and products by a computed gate, in place of their larger input."""

from collections.abc import Callable
from math import prod

from retune.compiler.core.dtype import HALVES, is_float
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node, Value
from retune.compiler.graph.passes.merge_products import is_product
from retune.compiler.graph.passes.rules.views import reshape
from retune.compiler.ir.dims import estimate

_LARGEST_SHARE = 0.25
"""Most weights per element of the input. Scaled weights are not constant, so no layout is chosen for them: from 0.4 on
networks were 2% slower than with a scaled input.
"""


def scale_weights(graph: Graph) -> Graph:
    """Scale the rows of a weight instead of the channels of its input, as after a squeeze-and-excitation.

    before: y = conv2d(mul(x[1, H, W, C], gate[1, 1, 1, C]), w[1, 1, C, N])
    after:  y = conv2d(x, mul(w, gate[C, 1]))

    For products, and channels-last convolutions of one tap, that are the only reader of the scaled input. `fold_scales`
    does the same with constants.
    """
    producers, consumers = graph.producers(), graph.consumers()

    def others_read(name: str) -> bool:
        return len(consumers[name]) > 1 or name in graph.outputs

    chosen = set()
    for node in graph.nodes:
        source = producers.get(node.inputs[0]) if _pays(graph, node) else None
        operands = None if source is None else _gate(graph.values.__getitem__, source)
        if operands is None or others_read(node.inputs[0]):
            continue
        # A value without other readers is scaled by the kernel that computes it.
        if others_read(operands[0]) or operands[0] not in producers:
            chosen.add(node.output)
    return rewrite(graph, lambda builder, node: _scale(builder, node) if node.output in chosen else None)


def _gate(value: Callable[[str], Value], node: Node) -> tuple[str, str] | None:
    """The larger operand of an element-wise product, and the other operand, which has a number per channel."""
    shape = value(node.output).shape
    for x, gate in (node.inputs, node.inputs[::-1]) if node.op == "mul" else ():
        if value(x).shape == shape and value(gate).size == shape[-1] and value(gate).shape[-1:] == shape[-1:]:
            return x, gate
    return None


def _pays(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies rows, or pixels, with a matrix small enough to scale."""
    if not is_product(node):
        return False
    x, weight = (graph.values[name] for name in node.inputs)
    few = prod(weight.shape[:-2]) == 1 and estimate(weight.size) <= _LARGEST_SHARE * estimate(x.size)
    return few and is_float(x.dtype) and x.dtype not in HALVES and weight.dtype == x.dtype  # halves might overflow


def _scale(builder: GraphBuilder, node: Node) -> str:
    source = builder.producer(node.inputs[0])
    operands = None if source is None else _gate(builder.value, source)
    assert operands is not None, "the builder has the nodes of the graph"
    x, gate = operands
    column = reshape(builder, gate, (builder.value(gate).size, 1))
    weight = builder.emit("mul", [node.inputs[1], column], name=f"{node.name}_weight" if node.name else "")
    return builder.emit(node.op, [x, weight], node.attrs, name=node.name, output=node.output)
