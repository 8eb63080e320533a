"""Joins kernels that move or change single elements with the only kernel that reads them.

What moves elements and element-wise operators are computed element by element where they are read, if the joined kernel
has no more loop nests than its reader alone: nothing is stored in between.

    x ─► slice ─► neg ─► concat ─► mul ─► add        a rotary embedding: five groups become one
    x, y ─► concat ─► conv2d                         a convolution with padding copies its input anyway, and one
                                                     of single points sums over x and then over y
    x ─► reshape ─► transpose ─► reshape ─► add      windows of an image
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from retune.compiler.graph.fuse import DEEPEST, LARGEST_EXPRESSION, FusedOp, Fusion
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ops import OPS, FusionKind

_COPIES = ("slice", "concat", "transpose", "pad")
"""Operators of which each element of the result is an element of an operand, or a constant."""
_MOVES = (*_COPIES, "reshape")
"""These, and views that are computed as a part of a kernel."""
_PADDED = ("conv2d", "conv3d")
"""Operators that copy their first operand with padding around it."""


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
        names, shared = _candidates(graph, group), list[str]()
        # Grows while it is walked: what a group has taken in reads values of its own, and may be what else read one.
        for name in names:
            views = [graph.nodes[places[view]] for view in _views(fusion.aliases, name)]
            source = views[0].inputs[0] if views else name
            producer = made.get(source)
            inside = (*views, *group.nodes)
            alone = _is_read_by(graph, fusion.aliases, readers, source, inside)
            if producer is not None and alone and _suits(producer, group, name):
                taken = (*producer.nodes, *views)
            elif views and views[-1].op == "slice" and any(views[-1].inputs[0] in node.inputs for node in group.nodes):
                # The group reads all of the value anyway, so that it needs no view of it.
                taken = (views[-1],)
            else:
                shared += [] if alone else [name]
                continue
            # A view may be among the nodes already.
            nodes = tuple(
                graph.nodes[place] for place in sorted({places[one.output] for one in (*taken, *group.nodes)})
            )
            joined = FusedOp(nodes, nodes.index(group.core))
            small = len(nodes) <= DEEPEST and _expression_size(nodes) <= LARGEST_EXPRESSION
            if small and nests(joined) == nests(group):
                if producer is not None and producer.nodes[0] in taken:
                    del made[source]
                group = joined
                names += [*shared, *(other for other in _candidates(graph, group) if other not in names)]
                shared = []
        made[group.output] = group
    return Fusion(tuple(made.values()), fusion.aliases)


def _candidates(graph: Graph, group: FusedOp) -> list[str]:
    """The values of which the nodes of a group read each element once, where they may as well compute them."""
    if group.kind in (FusionKind.COMPLEX, FusionKind.REDUCTION):
        names = [group.core.inputs[0]]
    elif _is_copy_or_elementwise(group.core):
        names = [name for node in group.nodes for name in node.inputs if not _is_repeated(graph, name, node)]
    else:
        names = []
    return list(dict.fromkeys(names))


def _is_read_by(
    graph: Graph, aliases: Mapping[str, str], readers: Mapping[str, Sequence[Node]], name: str, nodes: Collection[Node]
) -> bool:
    """Whether nothing but some nodes reads a value, or shows its memory to others."""
    left = [name]
    while left:
        name = left.pop()
        found = readers.get(name, ())
        if name in graph.outputs or not all(node in nodes for node in found):
            return False
        left += [node.output for node in found if node.output in aliases]
    return True


def _views(aliases: Mapping[str, str], name: str) -> list[str]:
    """The values, `name` last, that show the memory of one of another shape, each of that before it."""
    views: list[str] = []
    while name in aliases:
        views.insert(0, name)
        name = aliases[name]
    return views


def _suits(producer: FusedOp, group: FusedOp, name: str) -> bool:
    """Whether a group may compute what a producer does, which it alone reads, as `name`."""
    if not all(map(_is_copy_or_elementwise, producer.nodes)):
        return False
    if all(node.op in _MOVES for node in producer.nodes):
        return True
    match group.kind:
        case FusionKind.COMPLEX:
            # One with padding copies its input, so it computes every element once. With an activation at the end it
            # would be another task to tune than those without: resnet18 has as many as in TVM.
            is_padded = group.core.op in _PADDED and any(group.core.ints("pads"))
            return is_padded and producer.nodes[-1].op in _COPIES
        case FusionKind.REDUCTION:
            return False
    # What is read more than once would be computed more than once.
    return sum(node.inputs.count(name) for node in group.nodes) == 1


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
    """Whether each element of a node's result is computed of at most one element of each operand, in rows that lie in
    memory as the operand's do.
    """
    if node.op == "transpose":
        return node.ints("perm")[-1] == len(node.ints("perm")) - 1
    return node.op in _MOVES or OPS[node.op].kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)
