"""Merges two consecutive products or convolutions with constant weights, by multiplying the weights.

Products associate, x (A B) = (x A) B, also with a shift in between; the form with fewer multiplications is kept.
"""

import math
from collections.abc import Callable

import numpy as np

from retune.compiler.core.dtype import is_float
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Array, Graph, Node
from retune.compiler.graph.partition.memoize import memoize
from retune.compiler.graph.passes.rules.views import reshape
from retune.compiler.ops.conv import LAYOUTS

_CONVOLUTIONS = ("conv2d", "conv3d")
_CHANNELS_LAST = tuple(last for _, last in LAYOUTS.values())

_LARGEST_SHARE = 0.8
"""Largest share of multiplications after merging; less gain does not justify rounding weights again."""


def merge_products(graph: Graph) -> Graph:
    """Merge a channels-last convolution or product with the 1x1 convolution or product that is its only reader.

    before: y = dense(dense(x, a) + shift, b)
    after:  y = dense(x, a b) + shift b

    Weights and shift must be constant. Their product is rounded once, from float64.
    """
    producers, consumers = graph.producers(), graph.consumers()
    merged: set[str] = set()
    for node in graph.nodes:
        chain = _chain(producers.get, graph.constants.__contains__, node)
        alone = chain is not None and all(
            len(consumers[link.output]) == 1 and link.output not in graph.outputs for link in chain
        )
        # In a chain of three the first two are merged.
        if chain is not None and alone and chain[-1].output not in merged and _pays(graph, chain, node):
            merged.add(node.output)

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        return _merge(builder, node) if node.output in merged else None

    return rewrite(graph, convert)


def _chain(
    producer: Callable[[str], Node | None], is_constant: Callable[[str], bool], second: Node
) -> tuple[Node, ...] | None:
    """The nodes from a product's operand back to the previous product: reshapes of leading axes, one constant shift."""
    if not _is_linear(second) or not is_constant(second.inputs[1]):
        return None
    links: list[Node] = []
    node = producer(second.inputs[0])
    while node is not None and not is_product(node):
        is_shift = node.op == "add" and is_constant(node.inputs[1]) and all(link.op != "add" for link in links)
        if not is_shift and node.op != "reshape":
            return None
        links.append(node)
        node = producer(node.inputs[0])
    return (*links, node) if node is not None and is_constant(node.inputs[1]) else None


def is_product(node: Node) -> bool:
    """Whether a node is a product with a matrix, or a channels-last convolution without groups."""
    return node.op == "dense" or (
        node.op in _CONVOLUTIONS and node.text("layout") in _CHANNELS_LAST and node.integer("groups") == 1
    )


def _is_linear(node: Node) -> bool:
    """Whether a product computes each row, or pixel, from the same row alone, by its attributes."""
    if node.op == "dense":
        return True
    return is_product(node) and {*node.ints("strides")} == {1} and not any(node.ints("pads"))


def _pays(graph: Graph, chain: tuple[Node, ...], second: Node) -> bool:
    """Whether the merged product multiplies less than both, and the axis between them stays whole."""
    before, after = graph.values[chain[-1].inputs[1]], graph.values[second.inputs[1]]
    between = after.shape[-2]
    is_whole = all(graph.values[link.output].shape[-1:] == (between,) for link in chain)
    shifts = [graph.values[link.inputs[1]] for link in chain if link.op == "add"]
    by_column = all(shift.size == 1 or (shift.size == between and shift.shape[-1] == between) for shift in shifts)
    floats = before.dtype == after.dtype and is_float(before.dtype)
    if not (is_whole and by_column and floats and math.prod(after.shape[:-2]) == 1):
        return False
    # Products are counted for one row, or pixel: both ways have as many rows.
    together = before.size // between * after.shape[-1]
    return together <= _LARGEST_SHARE * (before.size + after.size)


def _merge(builder: GraphBuilder, second: Node) -> str:
    chain = _chain(builder.producer, builder.is_constant, second)
    assert chain is not None, "the builder has the nodes of the graph"
    first, ahead, weight = chain[-1], builder.array(chain[-1].inputs[1]), builder.array(second.inputs[1])
    assert ahead is not None, "a constant of the graph"
    assert weight is not None, "a constant of the graph"
    matrix = weight.reshape(weight.shape[-2:])
    product = _times(ahead, matrix)
    rows = builder.value(second.inputs[0]).shape[:-1]
    if first.op == "dense":
        # Only rows matter, so the second product's form works as well, and its result needs no other shape.
        x = reshape(builder, first.inputs[0], (*rows, ahead.shape[0]))
        name = builder.constant(product.reshape(*weight.shape[:-2], *product.shape), first.inputs[1])
        result = builder.emit(second.op, [x, name], second.attrs, name=second.name, output=second.output)
    else:
        name = builder.constant(product, first.inputs[1])
        result = builder.emit(first.op, [first.inputs[0], name], first.attrs, name=second.name, output=second.output)
    for link in chain:
        if link.op == "add":
            shift = np.broadcast_to(np.asarray(builder.array(link.inputs[1])).ravel(), matrix.shape[:1])
            result = builder.emit("add", [result, builder.constant(_times(shift, matrix), link.inputs[1])])
    return reshape(builder, result, (*rows, weight.shape[-1]))


def _times(left: Array, matrix: Array) -> Array:
    # In float64 and rounded once.
    both = [left, matrix]
    return memoize(_times, both, lambda: (left.astype(np.float64) @ matrix).astype(left.dtype))
