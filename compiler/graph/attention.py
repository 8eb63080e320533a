"""Joins the kernels of attention: two products and the softmax of the scores between them.

A kernel of its own for each writes all scores to memory and reads them again, two or three times. One kernel computes a
block of their rows after the other (`retune.compiler.schedule.row_blocks`).

    product ─► scale ─► mask ─► softmax ─► product      three groups become one
    product ─► softmax ─► product ─► silu               three groups become two
"""

from collections.abc import Callable, Iterator
from itertools import chain

from retune.compiler.graph.fuse import FusedOp, Fusion
from retune.compiler.graph.ir import Graph

PRODUCTS = ("contract", "batch_matmul", "dense")
"""Products of two tensors of which neither need be a constant."""


def join_attention(graph: Graph, fusion: Fusion, fits: Callable[[FusedOp], bool]) -> Fusion:
    """The groups with those of each attention joined, where that `fits` what one kernel can do."""
    made = {group.output: group for group in fusion.groups}
    readers: dict[str, int] = dict.fromkeys(graph.outputs, 1)
    for node in graph.nodes:
        for name in node.inputs:
            readers[name] = readers.get(name, 0) + 1
    joined: dict[str, tuple[FusedOp, ...]] = {}
    taken: set[str] = set()
    for group in fusion.groups:
        softmax = made.get(group.core.inputs[0]) if group.core.op in PRODUCTS else None
        first = made.get(softmax.core.inputs[0]) if softmax is not None else None
        # Of two in a chain, the second product of the one may not be the first of the other.
        if softmax is None or first is None or {softmax.output, first.output} & {*taken, *joined}:
            continue
        alone = readers[softmax.output] == readers[first.output] == 1
        if alone and _is_softmax(graph, softmax) and first.core.op in PRODUCTS:
            parts = next((parts for parts in _ways(first, softmax, group) if fits(parts[0])), None)
            if parts is not None:
                joined[group.output] = parts
                taken |= {softmax.output, first.output}
    # A joined group stands where its last part stood: what it reads was computed before.
    groups = (joined.get(group.output, (group,)) for group in fusion.groups if group.output not in taken)
    return Fusion(tuple(chain.from_iterable(groups)), fusion.aliases)


def _ways(first: FusedOp, softmax: FusedOp, second: FusedOp) -> Iterator[tuple[FusedOp, ...]]:
    """The three groups as one, and as one with what follows the second product behind it: to store and to read its
    result is less than to store and to read all scores.
    """
    before, place = (*first.nodes, *softmax.nodes), len(first.nodes) + 1 + second.place
    yield (FusedOp((*before, *second.nodes), place),)
    core, others = second.nodes[: second.place + 1], second.nodes[second.place + 1 :]
    if others:
        yield FusedOp((*before, *core), place), FusedOp(others)


def is_attention(group: FusedOp) -> bool:
    """Whether a group is two products with a softmax between them."""
    return group.core.op in PRODUCTS and any(node.op == "softmax" for node in group.nodes)


def _is_softmax(graph: Graph, group: FusedOp) -> bool:
    """Whether the group is a softmax along the last axis, and nothing else."""
    node = group.core
    return (
        len(group.nodes) == 1
        and node.op == "softmax"
        and node.integer("axis") == len(graph.values[node.output].shape) - 1
    )
