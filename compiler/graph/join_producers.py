"""Joins kernels that move or change single elements with the only kernel that reads them.

Slices, concatenations and element-wise operators are computed element by element where they are read, if the joined
kernel has no more loop nests than its reader alone: nothing is stored in between and nothing is computed twice.

    x ─► slice ─► neg ─► concat ─► mul ─► add        a rotary embedding: five groups become one
    x ─► leaky_relu ─► conv2d                        a convolution with padding copies its input anyway
"""

from collections.abc import Callable

from retune.compiler.graph.fuse import LARGEST_EXPRESSION, FusedOp, Fusion
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ops import OPS, FusionKind

_COPIES = ("slice", "concat")
"""Operators of which each element of the result is an element of an operand, in the same order."""
_PADDED = ("conv2d", "conv3d")
"""Operators that copy their first operand with padding around it."""
_MOST_NODES = 24
"""Nodes of a joined group: their expressions become one, which many visitors walk recursively."""


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
        for name in _candidates(group):
            producer = made.get(name)
            alone = name not in graph.outputs and all(node in group.nodes for node in readers[name])
            if producer is None or not alone or not all(map(_is_moved, producer.nodes)):
                continue
            nodes = tuple(sorted((*producer.nodes, *group.nodes), key=lambda node: places[node.output]))
            joined = FusedOp(nodes, nodes.index(group.core))
            small = len(nodes) <= _MOST_NODES and _expression_size(nodes) <= LARGEST_EXPRESSION
            if small and nests(joined) == nests(group):
                group = joined
                del made[name]
        made[group.output] = group
    return Fusion(tuple(made.values()), fusion.aliases)


def _candidates(group: FusedOp) -> list[str]:
    """The values that are read once, where a group may compute them itself."""
    if group.core.op in _PADDED and any(group.core.ints("pads")):
        names = [group.core.inputs[0]]
    else:
        names = [name for node in group.nodes for name in node.inputs] if _is_moved(group.core) else []
    uses = [name for node in group.nodes for name in node.inputs]
    return [name for name in names if uses.count(name) == 1]


def _expression_size(nodes: tuple[Node, ...]) -> int:
    """Nodes of the expression of the result, in which a node stands as often as it is read."""
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.output] = 1 + OPS[node.op].reads * sum(sizes.get(name, 0) for name in node.inputs)
    return sizes[nodes[-1].output]


def _is_moved(node: Node) -> bool:
    """Whether each element of a node's result is computed of one element of each operand, in the same order."""
    return node.op in _COPIES or OPS[node.op].kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)
