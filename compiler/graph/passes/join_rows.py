"""Joins products with the same constant weights: the weights are read once instead of once for every few rows.

Exporters that unroll a recurrent cell, and networks with several equal branches, write such products.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import accumulate

from retune.compiler.graph.ir import Graph, Node, Value
from retune.compiler.graph.passes.common_subexpressions import fold_constants
from retune.compiler.te.prim_func import unique_name

_LEAST_GAIN = 4
"""Elements of the weights for each element of a product's operand and result, which joining copies."""


def join_rows(graph: Graph) -> Graph:
    """Join the products with a weight that wait for no other product with it.

    before: y1 = dense(x1, w); y2 = dense(x2, w)
    after:  y = dense(concat(x1, x2), w); y1 = y[:rows of x1]; y2 = y[rows of x1:]
    """
    products: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "dense" and _pays(graph, node):
            products[node.inputs[1]].append(node)
    for members in products.values():
        if len(members) > 1:
            graph = _join(graph, {node.output for node in members})
    return graph


def _pays(graph: Graph, node: Node) -> bool:
    """Whether a product has few rows for its constant weight."""
    weight = graph.values[node.inputs[1]]
    copied = graph.values[node.inputs[0]].size + graph.values[node.output].size
    return node.inputs[1] in graph.constants and isinstance(copied, int) and weight.size >= _LEAST_GAIN * copied


def _join(graph: Graph, members: set[str]) -> Graph:
    """The graph with a single product for those of the products `members`, by result, that depend on none of them."""
    first: list[Node] = []
    before: list[Node] = []
    # Results of the members, and all that depends on them.
    behind: set[str] = set()
    after: list[Node] = []
    for node in graph.nodes:
        if not behind.isdisjoint(node.inputs):
            behind.add(node.output)
            after.append(node)
        elif node.output in members:
            behind.add(node.output)
            first.append(node)
        else:
            before.append(node)
    if len(first) < 2:
        return graph
    return fold_constants(_with_product(graph, first, (before, after)))


def _with_product(graph: Graph, members: list[Node], around: tuple[list[Node], list[Node]]) -> Graph:
    """The graph of the nodes before and after, `around` a single product in place of its `members`."""
    operands = [graph.values[node.inputs[0]] for node in members]
    dtype, columns = graph.values[members[0].output].dtype, graph.values[members[0].output].shape[1]
    names = set(graph.values)
    rows, product = (unique_name(f"{members[0].output}_{word}", names) for word in ("rows", "joined"))
    ends = [*accumulate(operand.shape[0] for operand in operands)]
    values = {
        rows: Value(rows, (ends[-1], operands[0].shape[1]), operands[0].dtype),
        product: Value(product, (ends[-1], columns), dtype),
    }
    nodes = [
        Node("concat", tuple(operand.name for operand in operands), (rows,), {"axis": 0}),
        Node("dense", (rows, members[0].inputs[1]), (product,), members[0].attrs, members[0].name),
    ]
    for node, start, stop in zip(members, (0, *ends), ends, strict=False):
        attrs = {"starts": (start, 0), "stops": (stop, columns), "steps": (1, 1)}
        nodes.append(Node("slice", (product,), node.outputs, attrs, node.name))
    before, after = around
    return replace(graph, nodes=(*before, *nodes, *after), values={**graph.values, **values})
