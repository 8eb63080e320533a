"""Groups the nodes of a graph into kernels, and finds the values that are views of other values.

Every node is in one group or is an alias; a group has one visible result; groups are in execution order.

A convolution, a matrix product or a reduction takes the element-wise operators after it into its group; element-wise
and injective operators start groups of their own. The nodes between an operator and its immediate post-dominator (the
node that every path to a graph output passes first) are taken all or none, so a group never waits for itself:

    conv ─► add ─► relu        one group          conv ─► sigmoid ─► mul ─► ...    one group
             ▲                                      └────────────────▲
        other branch, computed before

A branch that widens bytes or halves is fused, so the wide numbers are never stored. So is a branch that resamples a
smaller tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from retune.compiler.core.dtype import HALVES
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ir.dims import estimate
from retune.compiler.ir.dot import BYTES
from retune.compiler.ops import OPS, POINTWISE, FusionKind

# A fused branch is recomputed with each tile of the convolution: only a few operations per element are worth it.
_LONGEST_CHAIN = 8
DEEPEST = 24
"""Longest chain of element-wise nodes in a group. They become one expression, which visitors walk recursively, with
some twenty of Python's thousand frames per node.
"""
LARGEST_EXPRESSION = 64
"""Nodes of that expression, in which a node occurs as often as it is read: `x + x` doubles it with each node."""
_TAKES_FOLLOWERS = (FusionKind.COMPLEX, FusionKind.REDUCTION, *POINTWISE, FusionKind.INJECTIVE)


@dataclass(frozen=True, slots=True)
class FusedOp:
    """Nodes of one kernel in topological order: the last computes its result, the node at `anchor` is the operator that
    the group grew from.
    """

    nodes: tuple[Node, ...]
    anchor: int = 0

    @property
    def core(self) -> Node:
        """The operator that the group grew from."""
        return self.nodes[self.anchor]

    @property
    def kind(self) -> FusionKind:
        return OPS[self.core.op].kind

    @property
    def output(self) -> str:
        """The only value that is visible outside."""
        return self.nodes[-1].output

    def __str__(self) -> str:
        return f"{'+'.join(node.op for node in self.nodes)} -> {self.output}"


@dataclass(frozen=True, slots=True)
class Fusion:
    """`groups` in execution order; `aliases` maps a value to the value whose memory it views in another shape."""

    groups: tuple[FusedOp, ...]
    aliases: Mapping[str, str]


def fuse(graph: Graph) -> Fusion:
    aliases = _aliases(graph)
    free = [node.output not in aliases for node in graph.nodes]
    flow = _Flow(graph)
    groups: list[list[int]] = []
    for start in _start_order(graph):
        if free[start]:
            free[start] = False
            groups.append(_grow(graph, flow, start, free))
    # By its last node: a group's inputs are all computed before it, and nodes are in topological order.
    groups.sort(key=lambda group: group[-1])
    return Fusion(tuple(FusedOp(tuple(graph.nodes[index] for index in members)) for members in groups), aliases)


def _aliases(graph: Graph) -> dict[str, str]:
    """The operand of each node that computes nothing, by the node's result. Outputs are never parts of other values."""
    visible, aliases = set(graph.outputs), dict[str, str]()
    # Backward, so that a value whose view is a graph output is known as visible before its own producer is visited:
    # visible values must not be slices of others.
    for node in reversed(graph.nodes):
        is_view = _is_view(graph, node)
        if is_view or (node.output not in visible and _is_prefix(graph, node)):
            aliases[node.output] = node.inputs[0]
        if is_view and node.output in visible:
            visible.add(node.inputs[0])
    return dict(reversed(aliases.items()))


def _is_prefix(graph: Graph, node: Node) -> bool:
    """Whether the node takes a prefix of its operand's memory."""
    if node.op != "slice" or node.inputs[0] in graph.constants:
        return False
    shape, taken = graph.values[node.inputs[0]].shape, graph.values[node.output].shape
    cut = [axis for axis, extent in enumerate(taken) if extent != shape[axis]]
    in_front = shape[: cut[0]] if cut else ()
    # Only the outermost axis longer than 1 may be cut: then the elements are the first in row-major order.
    is_dense = all(step == 1 for step in node.ints("steps"))
    return is_dense and len(cut) <= 1 and not any(node.ints("starts")) and all(extent == 1 for extent in in_front)


def _is_view(graph: Graph, node: Node) -> bool:
    """Whether the node only reshapes its operand: a reshape, or a transpose that moves axes of extent 1.

    An output that is a constant without elements counts too.
    """
    if node.op == "identity":
        return graph.values[node.output].size == 0
    if node.op == "reshape":
        return True
    if node.op != "transpose":
        return False
    shape = graph.values[node.inputs[0]].shape
    moved = [axis for axis in node.ints("perm") if shape[axis] != 1]
    return moved == sorted(moved)


def _start_order(graph: Graph) -> list[int]:
    """Nodes in the order in which they may claim others.

    Of two convolutions that are added, the more expensive takes the addition (the later for a tie). That gives a
    residual block the same kernel with or without a convolution in the shortcut: fewer tasks to tune.
    """
    order = range(len(graph.nodes))
    kinds = [OPS[node.op].kind for node in graph.nodes]
    complex_ = [index for index in reversed(order) if kinds[index] is FusionKind.COMPLEX]
    # The sort is stable: nodes with equal work stay in reverse order, so the later one claims the addition.
    complex_.sort(key=lambda index: -_work(graph, graph.nodes[index]))
    reductions = [index for index in reversed(order) if kinds[index] is FusionKind.REDUCTION]
    claimed = {*complex_, *reductions}
    return [*complex_, *reductions, *(index for index in order if index not in claimed)]


def _work(graph: Graph, node: Node) -> int:
    """Grows with the multiplications of a convolution or product; comparable for results of one shape only."""
    return estimate(graph.values[node.output].size * graph.values[node.inputs[1]].size)


def _grow(graph: Graph, flow: "_Flow", start: int, free: list[bool]) -> list[int]:
    """The group that grows from `start`; its nodes are removed from `free`."""
    members = [start]
    if OPS[graph.nodes[start].op].kind not in _TAKES_FOLLOWERS:
        return members
    shape = graph.values[graph.nodes[start].output].shape
    depth, size = {start: 1}, {start: 1}
    # Grow from one post-dominator to the next. Each region is taken whole: a part of it would make the group depend on
    # a node outside that depends on the group, a cycle between kernels.
    while (region := flow.region(members[-1])) is not None:
        nodes = [graph.nodes[index] for index in region]
        pointwise = all(OPS[node.op].kind in POINTWISE for node in nodes)
        alike = all(graph.values[node.output].shape == shape for node in nodes)
        if not (pointwise and alike and all(free[index] for index in region)):
            break
        for index, node in zip(region, nodes, strict=True):
            read = [flow.number[name] for name in node.inputs if flow.number.get(name) in depth]
            depth[index] = 1 + max(depth[operand] for operand in read)
            # An operator that reads its operand several times duplicates the whole expression of the operand.
            size[index] = 1 + OPS[node.op].reads * sum(size[operand] for operand in read)
        if depth[region[-1]] > DEEPEST or size[region[-1]] > LARGEST_EXPRESSION:
            break
        for index in region:
            free[index] = False
        members += region
    return [start, *sorted((*members[1:], *_take_widening(graph, flow, members, free)))]


def _take_widening(graph: Graph, flow: "_Flow", members: list[int], free: list[bool]) -> list[int]:
    """Remove from `free`, and return, nodes that widen numbers or upsample tensors for members after the first."""
    inside, chains = set(members[1:]), list[int]()
    for member in members[1:]:
        for name in graph.nodes[member].inputs:
            chain = _widening_chain(graph, flow, name, members[0], free, _LONGEST_CHAIN)
            if chain and all(flow.read_by(index) <= inside | set(chain) for index in chain):
                for index in chain:
                    free[index] = False
                chains += chain
                inside.update(chain)
    return chains


def _widening_chain(graph: Graph, flow: "_Flow", name: str, first: int, free: list[bool], most: int) -> list[int]:
    """The free nodes that compute `name` from less memory, in the shape of node `first`; empty if more than `most`."""
    index = flow.number.get(name)
    if index is None or not free[index] or not most:
        return []
    node, shape = graph.nodes[index], graph.values[graph.nodes[first].output].shape
    if graph.values[name].shape != shape:
        return []
    if node.op == "resample":
        smaller, larger = (estimate(graph.values[value].size) for value in (node.inputs[0], name))
        return [index] if smaller < larger else []
    if OPS[node.op].kind not in POINTWISE:
        return []
    if node.op == "cast":
        return [index] if graph.values[node.inputs[0]].dtype in (*BYTES, *HALVES) else []
    chain = [index]
    for operand in node.inputs:
        if operand not in graph.constants:
            part = _widening_chain(graph, flow, operand, first, free, most - len(chain))
            if not part:
                return []
            chain += part
    return chain


class _Flow:
    """The readers of each node, and its immediate post-dominator: the first node that all paths from it pass."""

    def __init__(self, graph: Graph) -> None:
        count = len(graph.nodes)
        self.number = number = {node.output: index for index, node in enumerate(graph.nodes)}
        self._readers: list[list[int]] = [[] for _ in graph.nodes]
        for index, node in enumerate(graph.nodes):
            for name in dict.fromkeys(node.inputs):
                if name in number:
                    self._readers[number[name]].append(index)
        self._exit = count
        self._outputs = frozenset(number[name] for name in graph.outputs if name in number)
        # The tree of post-dominators grows leaf by leaf; jump pointers (Myers, skew-binary) find the common ancestor
        # of two leaves in logarithmic time.
        self._meet = [count] * (count + 1)
        self._jump = [count] * (count + 1)
        self._depth = [0] * (count + 1)
        # Nodes are in topological order, so all readers of a node have been processed. Its immediate post-dominator is
        # their nearest common ancestor in the tree, as in the algorithm of Cooper, Harvey and Kennedy, which needs no
        # iteration on an acyclic graph.
        for index in reversed(range(count)):
            ends = not self._readers[index] or index in self._outputs
            meeting = count if ends else self._readers[index][0]
            for reader in self._readers[index]:
                meeting = self._common(meeting, reader)
            self._meet[index] = meeting
            self._depth[index] = self._depth[meeting] + 1
            far = self._jump[meeting]
            # Skew-binary numbers: two jumps of equal length are followed by one that spans both, else by a jump to the
            # parent.
            equal = self._depth[meeting] - self._depth[far] == self._depth[far] - self._depth[self._jump[far]]
            self._jump[index] = self._jump[far] if equal else meeting

    def _common(self, left: int, right: int) -> int:
        """The nearest common ancestor of two nodes in the tree of post-dominators."""
        depth, jump, meet = self._depth, self._jump, self._meet
        if depth[left] < depth[right]:
            left, right = right, left
        # First the deeper node rises to the depth of the other, then both rise together; a jump is taken if it does not
        # pass the common ancestor.
        while depth[left] > depth[right]:
            left = jump[left] if depth[jump[left]] >= depth[right] else meet[left]
        while left != right:
            apart = jump[left] != jump[right]
            left, right = (jump[left], jump[right]) if apart else (meet[left], meet[right])
        return left

    def read_by(self, index: int) -> set[int]:
        """The nodes that read the result of a node; the exit for an output of the graph."""
        return {*self._readers[index], *((self._exit,) if index in self._outputs else ())}

    def region(self, start: int) -> list[int] | None:
        """The nodes after `start` up to and with its immediate post-dominator; None at the exit or for too many."""
        last = self._meet[start]
        if last == self._exit:
            return None
        reached = {last}
        stack = [start]
        # Depth-first search that stops at the post-dominator, which is in `reached` from the start.
        while stack and len(reached) <= LARGEST_EXPRESSION:
            for reader in self._readers[stack.pop()]:
                if reader not in reached:
                    reached.add(reader)
                    stack.append(reader)
        return None if stack else sorted(reached)
