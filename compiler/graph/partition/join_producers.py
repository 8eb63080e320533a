"""Fuses kernels that only move or change single elements into their only reader.

The reader computes moves and element-wise operators element by element, if the joined kernel has no more loop nests
than the reader alone: nothing is stored in between.

    x ─► slice ─► neg ─► concat ─► mul ─► add        a rotary embedding: five groups become one
    x, y ─► concat ─► conv2d                         a convolution with padding copies its input anyway; without
                                                     padding it sums over x, then over y
    x ─► reshape ─► transpose ─► reshape ─► add      windows of an image
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from retune.compiler.core.dtype import HALVES
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.partition.fuse import DEEPEST, LARGEST_EXPRESSION, FusedOp, Fusion
from retune.compiler.ir.dims import estimate
from retune.compiler.ir.dot import BYTES
from retune.compiler.ops import OPS, FusionKind

_COPIES = ("slice", "concat", "transpose", "pad")
"""Operators whose result elements are elements of operands, or constants."""
_MOVES = (*_COPIES, "reshape")
"""These, and views computed inside a kernel."""
_PADDED = ("conv2d", "conv3d")
"""Operators that copy their first operand with padding around it."""


def join_producers(graph: Graph, fusion: Fusion, nests: Callable[[FusedOp], int]) -> Fusion:
    """`fusion` with groups joined with producers only they read; `nests` counts the loop nests of a group's kernel."""
    order = {node.output: index for index, node in enumerate(graph.nodes)}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            readers.setdefault(name, []).append(node)
    joined_groups: dict[str, FusedOp] = {}
    # In execution order: the producers of a group were joined with their own producers before.
    for group in fusion.groups:
        names, shared = _candidates(graph, group), list[str]()
        # Grows during the loop: an absorbed producer adds the values it reads, and may be the other reader of a value
        # in `shared`.
        for name in names:
            views = [graph.nodes[order[view]] for view in _alias_chain(fusion.aliases, name)]
            source = views[0].inputs[0] if views else name
            producer = joined_groups.get(source)
            inside = (*views, *group.nodes)
            alone = _is_read_by(graph, fusion.aliases, readers, source, inside)
            if producer is not None and alone and _suits(graph, producer, group, name):
                added = (*producer.nodes, *views)
            elif views and views[-1].op == "slice" and any(views[-1].inputs[0] in node.inputs for node in group.nodes):
                # The group reads the whole value anyway, so it needs no view of it.
                added = (views[-1],)
            else:
                shared += [] if alone else [name]
                continue
            # A view may be among the nodes already.
            nodes = tuple(
                graph.nodes[index] for index in sorted({order[node.output] for node in (*added, *group.nodes)})
            )
            joined = FusedOp(nodes, nodes.index(group.core))
            small = len(nodes) <= DEEPEST and _expression_size(nodes) <= LARGEST_EXPRESSION
            if small and nests(joined) == nests(group):
                if producer is not None and producer.nodes[0] in added:
                    del joined_groups[source]
                group = joined
                names += [*shared, *(other for other in _candidates(graph, group) if other not in names)]
                shared = []
        joined_groups[group.output] = group
    return Fusion(tuple(joined_groups.values()), fusion.aliases)


def _candidates(graph: Graph, group: FusedOp) -> list[str]:
    """The values that the group's nodes could compute instead: each element is read once."""
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
    """Whether only `nodes` read the memory of value `name`, views of it included."""
    pending = [name]
    while pending:
        name = pending.pop()
        consumers = readers.get(name, ())
        if name in graph.outputs or not all(node in nodes for node in consumers):
            return False
        pending += [node.output for node in consumers if node.output in aliases]
    return True


def _alias_chain(aliases: Mapping[str, str], name: str) -> list[str]:
    """Reshapes of one buffer, from the first alias to `name`."""
    views: list[str] = []
    while name in aliases:
        views.insert(0, name)
        name = aliases[name]
    return views


def _widens(graph: Graph, node: Node) -> bool:
    narrow = graph.values[node.inputs[0]].dtype in (*HALVES, *BYTES)
    return node.op == "cast" and narrow and node.text("dtype") in ("float32", "int32")


def _suits(graph: Graph, producer: FusedOp, group: FusedOp, name: str) -> bool:
    """Whether a group may compute `name` in place of its producer, which only the group reads."""
    if not all(map(_is_copy_or_elementwise, producer.nodes)):
        return False
    if all(node.op in _MOVES for node in producer.nodes):
        return True
    match group.kind:
        case FusionKind.COMPLEX:
            # With padding a convolution copies its input, so it computes every element once. With an activation at the
            # end it would be another task than those without: resnet18 has as many tasks as in TVM.
            is_padded = group.core.op in _PADDED and any(group.core.ints("pads"))
            return is_padded and producer.nodes[-1].op in _COPIES
        case FusionKind.REDUCTION:
            # Each pass over a row converts its halves or bytes again, which costs less than a wider copy of them.
            return all(node.op in _MOVES or _widens(graph, node) for node in producer.nodes)
    # A value with several reads would be computed several times.
    return sum(node.inputs.count(name) for node in group.nodes) == 1


def _is_repeated(graph: Graph, name: str, node: Node) -> bool:
    """Whether a node broadcasts an operand, which would be recomputed for each element of the result."""
    return node.op not in _COPIES and estimate(graph.values[name].size) < estimate(graph.values[node.output].size)


def _expression_size(nodes: tuple[Node, ...]) -> int:
    """Nodes of the expression of the result, in which a node occurs as often as it is read."""
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.output] = 1 + OPS[node.op].reads * sum(sizes.get(name, 0) for name in node.inputs)
    return sizes[nodes[-1].output]


def _is_copy_or_elementwise(node: Node) -> bool:
    """Whether each element of a node's result needs at most one element of each operand, in the operand's row order."""
    if node.op == "transpose":
        return node.ints("perm")[-1] == len(node.ints("perm")) - 1
    return node.op in _MOVES or OPS[node.op].kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)
