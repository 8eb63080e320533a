"""Graph pass that keeps the scores of attention in float32 where a network computes them in halves.

A score near 16 is off by up to 0.06 in bfloat16, and its exponential by as much of itself.
"""

from collections.abc import Mapping, Sequence

from retune.compiler.core.dtype import HALVES
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.partition.attention import PRODUCTS
from retune.compiler.ops import OPS, POINTWISE

_MOVES = ("reshape", "transpose", "slice", "pad")


def widen_scores(graph: Graph) -> Graph:
    """Compute everything between a product of halves and a softmax of its result in float32.

    before: p = softmax(mul(contract(q, k), s))
    after:  p = half(softmax(mul(float32(contract(q, k)), float32(s))))      kernels sum the product in float32
    """
    consumers = graph.consumers()
    products = [n for n in graph.nodes if n.op in PRODUCTS and graph.values[n.output].dtype in HALVES]
    scores = {name for product in products for name in _scores(graph, consumers, product)}
    return rewrite(graph, lambda builder, node: _widen(builder, node, graph, scores)) if scores else graph


def _scores(graph: Graph, consumers: Mapping[str, Sequence[Node]], product: Node) -> list[str]:
    """The values after a product up to a softmax, each read by the next one alone; empty if there is no softmax."""
    values, name = list[str](), product.output
    while name not in graph.outputs and len(consumers[name]) == 1:
        (node,) = consumers[name]
        name = node.output
        values.append(name)
        if node.op == "softmax":
            return values
        is_step = OPS[node.op].kind in POINTWISE or node.op in _MOVES
        if not is_step or graph.values[name].dtype not in (*HALVES, "float32"):
            break
    return []


def _widen(builder: GraphBuilder, node: Node, graph: Graph, scores: set[str]) -> str | None:
    """The node in float32 if its result is among the scores; their softmax is rounded to what it was."""
    if node.output not in scores:
        return None
    operands = [
        builder.emit("cast", [name], {"dtype": "float32"}) if builder.value(name).dtype in HALVES else name
        for name in node.inputs
    ]
    if node.op == "cast":
        return operands[0]
    result = builder.emit(node.op, operands, node.attrs, name=node.name, output=node.output)
    dtype = graph.values[node.output].dtype
    if node.op != "softmax" or dtype == "float32":
        return result
    return builder.emit("cast", [result], {"dtype": dtype}, name=node.name, output=node.output)
