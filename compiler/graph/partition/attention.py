"""Joins the kernels of attention: two products and the softmax of the scores between them.

A kernel for each writes all scores to memory and reads them two or three times. A joined kernel computes one block of
their rows after another (`retune.compiler.schedule.default.row_blocks`).

    product ─► scale ─► mask ─► softmax ─► product      three groups become one
    product ─► softmax ─► product ─► silu               three groups become two
"""

from collections.abc import Callable, Iterator
from itertools import chain

from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.partition.fuse import FusedOp, Fusion

PRODUCTS = ("contract", "batch_matmul", "dense")
"""Products of two tensors, neither of which needs to be constant."""


def with_wide_weights(graph: Graph, fusion: Fusion) -> Fusion:
    """`fusion` with products of halves that read the weights of a softmax before these are rounded to halves.

    softmax, cast ─► product        becomes        softmax ─► cast, product
    """
    groups = {group.output: group for group in fusion.groups}
    consumers = graph.consumers()
    for group in fusion.groups:
        name = group.core.inputs[0] if group.core.op in PRODUCTS else ""
        softmax = groups.get(name)
        if softmax is None or softmax.core.op != "softmax" or softmax.nodes[-1].op != "cast" or name in graph.outputs:
            continue
        wide, cast = softmax.nodes[:-1], softmax.nodes[-1]
        if (
            len(consumers[name]) == 1
            and graph.values[cast.inputs[0]].dtype == "float32"
            and group.core.inputs[1] != name
        ):
            groups[name] = FusedOp(wide, softmax.anchor)
            groups[group.output] = FusedOp((cast, *group.nodes), group.anchor + 1)
    return Fusion(tuple(groups.values()), fusion.aliases)


def join_attention(graph: Graph, fusion: Fusion, fits: Callable[[FusedOp], bool]) -> Fusion:
    """`fusion` with the groups of each attention joined if `fits` accepts the joined group."""
    made = {group.output: group for group in fusion.groups}
    readers: dict[str, int] = dict.fromkeys(graph.outputs, 1)
    for node in graph.nodes:
        for name in node.inputs:
            readers[name] = readers.get(name, 0) + 1
    joined: dict[str, tuple[FusedOp, ...]] = {}
    taken: set[str] = set()
    for group in fusion.groups:
        source = rounded_weights(group) or group.core
        softmax = made.get(source.inputs[0]) if group.core.op in PRODUCTS else None
        first = made.get(softmax.core.inputs[0]) if softmax is not None else None
        # In a chain of two, the second product of the first must not be the first product of the second.
        if softmax is None or first is None or {softmax.output, first.output} & {*taken, *joined}:
            continue
        alone = readers[softmax.output] == readers[first.output] == 1
        if alone and _is_softmax(graph, softmax) and first.core.op in PRODUCTS:
            parts = next((parts for parts in _joinings(first, softmax, group) if fits(parts[0])), None)
            if parts is not None:
                joined[group.output] = parts
                taken |= {softmax.output, first.output}
    # A joined group takes the position of its last part: all its inputs are computed by then.
    groups = (joined.get(group.output, (group,)) for group in fusion.groups if group.output not in taken)
    return Fusion(tuple(chain.from_iterable(groups)), fusion.aliases)


def _joinings(first: FusedOp, softmax: FusedOp, second: FusedOp) -> Iterator[tuple[FusedOp, ...]]:
    """The three groups as one group; and as one group followed by what comes after the second product: storing and
    reloading its result costs less than storing and reloading all scores.
    """
    before, anchor = (*first.nodes, *softmax.nodes), len(first.nodes) + 1 + second.anchor
    yield (FusedOp((*before, *second.nodes), anchor),)
    core, followers = second.nodes[: second.anchor + 1], second.nodes[second.anchor + 1 :]
    if followers:
        yield FusedOp((*before, *core), anchor), FusedOp(followers)


def rounded_weights(group: FusedOp) -> Node | None:
    """The node that rounds the first factor of a product to halves, which kernels of CPUs leave out."""
    is_product = group.core.op in PRODUCTS
    nodes = group.nodes[: group.anchor] if is_product else ()
    return next((node for node in nodes if node.op == "cast" and node.output == group.core.inputs[0]), None)


def is_attention(group: FusedOp) -> bool:
    """Whether a group is two products with a softmax between them."""
    return group.core.op in PRODUCTS and any(node.op == "softmax" for node in group.nodes)


def _is_softmax(graph: Graph, group: FusedOp) -> bool:
    node = group.core
    return (
        len(group.nodes) == 1
        and node.op == "softmax"
        and node.integer("axis") == len(graph.values[node.output].shape) - 1
    )
