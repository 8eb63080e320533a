"""Joins kernels that move or change single elements with the only kernel that reads them.

Slices, concatenations and element-wise operators are computed element by element where they are read, if the joined
kernel has no more loop nests than its reader alone: nothing is stored in between.

    x ─► slice ─► neg ─► concat ─► mul ─► add        a rotary embedding: five groups become one
    x, y ─► concat ─► conv2d                         a convolution with padding copies its input anyway, and one
                                                     of single points sums over x and then over y
"""

from collections.abc import Callable

from retune.compiler.graph.fuse import DEEPEST, LARGEST_EXPRESSION, FusedOp, Fusion
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ops import OPS, FusionKind

_COPIES = ("slice", "concat")
"""Operators of which each element of the result is an element of an operand, in the same order."""


def join_producers(graph: Graph, fusion: Fusion, nests: Callable[[FusedOp], int]) -> Fusion:
    """The groups, each joined with those that it alone reads; `nests` counts the loop nests of a group's kernel."""
    places = {node.output: place for place, node in enumerate(graph.nodes)}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            readers.setdefault(name, []).append(node)
    made: dict[str, FusedOp] = {}
    # In running order: what a group reads has been joined with its own producers by then.
    for group in fusion.groups:
        for name in _candidates(graph, group):
            producer = made.get(name)
            alone = name not in graph.outputs and all(node in group.nodes for node in readers[name])
            if producer is None or not alone or not all(map(_is_copy_or_elementwise, producer.nodes)):
                continue
            # With an activation before it, a convolution would be another task to tune than those without.
            if group.kind is FusionKind.COMPLEX and producer.nodes[-1].op not in _COPIES:
                continue
            nodes = tuple(sorted((*producer.nodes, *group.nodes), key=lambda node: places[node.output]))
            joined = FusedOp(nodes, nodes.index(group.core))
            small = len(nodes) <= DEEPEST and _expression_size(nodes) <= LARGEST_EXPRESSION
            if small and nests(joined) == nests(group):
                group = joined
                del made[name]
        made[group.output] = group
    return Fusion(tuple(made.values()), fusion.aliases)


def _candidates(graph: Graph, group: FusedOp) -> list[str]:
    """The values of which one node of a group reads each element once, where it may as well compute them."""
    if group.kind is FusionKind.COMPLEX:
        names = [group.core.inputs[0]]
    elif _is_copy_or_elementwise(group.core):
        names = [name for node in group.nodes for name in node.inputs if not _is_repeated(graph, name, node)]
    else:
        names = []
    uses = [name for node in group.nodes for name in node.inputs]
    return [name for name in names if uses.count(name) == 1]


def _is_repeated(graph: Graph, name: str, node: Node) -> bool:
    """Whether a node broadcasts an operand: it would be computed again for each element of the result."""
    return node.op not in _COPIES and graph.values[name].size < graph.values[node.output].size


def _expression_size(nodes: tuple[Node, ...]) -> int:
    """Nodes of the expression of the result, in which a node stands as often as it is read."""
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.output] = 1 + OPS[node.op].reads * sum(sizes.get(name, 0) for name in node.inputs)
    return sizes[nodes[-1].output]


def _is_copy_or_elementwise(node: Node) -> bool:
    """Whether each element of a node's result is computed of at most one element of each operand."""
    return node.op in _COPIES or OPS[node.op].kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)
