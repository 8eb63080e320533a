"""Folds constant scales and shifts next to convolutions and products into their constant weights.

A convolution or product is never duplicated for this, so only a value with a single reader moves.
"""

import numpy as np
from numpy.typing import NDArray

from retune.compiler.graph.builder import GraphBuilder, rewrite, rewrite_until_stable
from retune.compiler.graph.ir import Array, Graph, Node
from retune.compiler.graph.partition.memoize import memoize
from retune.compiler.graph.passes.rules.arithmetic_rules import merge_constants

Doubles = NDArray[np.float64]

_CONVOLUTIONS = ("conv2d", "conv3d")
_TRANSPOSED = "conv_transpose2d"
_PRODUCTS = (*_CONVOLUTIONS, "dense", "batch_matmul")


_ROUNDS = 8
"""A round moves a constant past one node."""


def fold_scales(graph: Graph) -> Graph:
    """Fold x * c and x + c into the weights w of a neighboring convolution or product.

    before: mul(dense(x, w), c)           after: dense(x, w * c)
            mul(add(dense(x, w), b), c)          add(dense(x, w * c), b * c)
            dense(mul(x, c), w)                  dense(x, c' * w)
            dense(add(x, c), w)                  add(dense(x, w), c @ w)      (not with padding, which is not shifted)
    """
    return rewrite_until_stable(graph, _move_constants, _ROUNDS)


def _move_constants(graph: Graph) -> Graph:
    producers, consumers = graph.producers(), graph.consumers()

    def read_once(name: str) -> bool:
        return len(consumers[name]) == 1 and name not in graph.outputs

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        original = producers[node.output].inputs
        if not read_once(original[0]):
            return None
        if node.op == "add":
            return merge_constants(builder, node)
        if node.op == "mul":
            inner = producers.get(original[0])
            return _scaled_after(builder, node, movable=inner is not None and read_once(inner.inputs[0]))
        return _moved_behind(builder, node) if node.op in _PRODUCTS else None

    return rewrite(graph, convert)


def _scaled_after(builder: GraphBuilder, node: Node, *, movable: bool) -> str | None:
    """A product, or a product plus a constant, times the constant second operand."""
    scale, source = builder.array(node.inputs[1]), builder.producer(node.inputs[0])
    if scale is None or source is None or scale.dtype.kind != "f":
        return None
    if source.op == "add" and movable:
        shift, inner = builder.array(source.inputs[1]), builder.producer(source.inputs[0])
        if shift is None or inner is None or _for_results(builder, inner, scale) is None:
            return None
        if scale.dtype == np.float16 and np.abs(scale).max(initial=0) > 1:
            return None  # one of the two terms may overflow though their sum does not
        scaled = builder.emit("mul", [source.inputs[0], node.inputs[1]], name=inner.name, output=inner.output)
        # (w * x + b) * s = (w * s) * x + b * s
        moved = (shift.astype(np.float64) * scale).astype(shift.dtype)
        operands = [scaled, builder.constant(moved, source.inputs[1])]
        return builder.emit("add", operands, name=source.name, output=node.output)
    factors = _for_results(builder, source, scale)
    return None if factors is None else _with_weight(builder, source, source.inputs[0], factors, node.output)


def _moved_behind(builder: GraphBuilder, node: Node) -> str | None:
    """A product whose first operand is scaled or shifted by a constant."""
    source = builder.producer(node.inputs[0])
    if source is None or source.op not in ("mul", "add"):
        return None
    constant = builder.array(source.inputs[1])
    weight = builder.array(node.inputs[1])
    if constant is None or weight is None or constant.dtype.kind != "f":
        return None
    if builder.value(source.inputs[0]).shape != builder.value(source.output).shape:
        return None
    numbers = _for_operands(builder, node, constant)
    if numbers is None:
        return None
    if source.op == "mul":
        return _with_weight(builder, node, source.inputs[0], numbers, node.output)
    # Two terms of float16 that cancel lose digits, or overflow, where their sum does not.
    if constant.dtype == np.float16:
        return None
    # The padding is zero and not `c`, so the shift would be smaller at the border and not a constant per channel.
    if node.op in _CONVOLUTIONS and any(node.ints("pads")):
        return None
    shift = memoize((_shift, node.op), [weight, numbers], lambda: _shift(node.op, weight, numbers))
    result = builder.emit(node.op, [source.inputs[0], node.inputs[1]], node.attrs, name=node.name, output=node.output)
    return builder.emit("add", [result, builder.constant(shift, f"{node.output}_shift")])


def _shift(op: str, weight: Array, numbers: Doubles) -> Array:
    """The product's result for `numbers` alone."""
    shares = np.broadcast_to(numbers, weight.shape) * weight.astype(np.float64)
    if op in _CONVOLUTIONS:
        shift = shares.sum(axis=tuple(range(1, weight.ndim))).reshape(-1, *(1 for _ in weight.shape[2:]))
    else:
        shift = shares.sum(axis=-2, keepdims=weight.ndim > 2)
    return np.asarray(shift.astype(weight.dtype))


def _with_weight(builder: GraphBuilder, product: Node, x: str, factors: Doubles, output: str) -> str | None:
    weight = builder.array(product.inputs[1])
    assert weight is not None, "asked for products with constant weights"
    array = memoize(_scale_weight, [weight, factors], lambda: _scale_weight(weight, factors))
    if array.size and not (np.isfinite(array.max()) and np.isfinite(array.min())):
        return None  # as of 300 * 300 in float16
    scaled = builder.constant(array, product.inputs[1])
    return builder.emit(product.op, [x, scaled], product.attrs, name=product.name, output=output)


def _scale_weight(weight: Array, factors: Doubles) -> Array:
    # In float64 and rounded once, so that a chain of folded scales does not accumulate rounding errors.
    return np.asarray((weight.astype(np.float64) * factors).astype(weight.dtype))


def _for_results(builder: GraphBuilder, product: Node, constant: Array) -> Doubles | None:
    """The factors of the weight for a constant with a number per channel of the result."""
    weight = builder.array(product.inputs[1]) if product.op in (*_PRODUCTS, _TRANSPOSED) else None
    if weight is None:
        return None
    first = product.op in (*_CONVOLUTIONS, _TRANSPOSED) and product.text("layout").startswith("NC")
    result = builder.value(product.output).shape
    numbers = _along(constant, result, 1 if first else len(result) - 1)
    if numbers is None or not first:
        return numbers
    channel_axis = 1 if product.op == _TRANSPOSED else 0
    return numbers.reshape([-1 if axis == channel_axis else 1 for axis in range(weight.ndim)])


def _for_operands(builder: GraphBuilder, product: Node, constant: Array) -> Doubles | None:
    """The factors of the weight for a constant with a number per channel of the first operand."""
    x, weight = (builder.value(name).shape for name in product.inputs)
    if product.op not in _CONVOLUTIONS:
        numbers = _along(constant, x, len(x) - 1)
        return None if numbers is None else numbers.reshape(-1, 1)
    if not product.text("layout").startswith("NC"):
        return None
    numbers = _along(constant, x, 1)
    if numbers is None or numbers.size == 1:
        return numbers
    groups = product.integer("groups")
    # A grouped convolution's weight has the input channels of one group only, so each result channel takes its group's
    # factors.
    rows = np.repeat(numbers.reshape(groups, weight[1]), weight[0] // groups, axis=0)
    return rows.reshape(*rows.shape, *(1 for _ in weight[2:]))


def _along(constant: Array, shape: tuple[int, ...], axis: int) -> Doubles | None:
    """The numbers of a constant with one number, or with one per index along `axis`, when combined with `shape`."""
    if constant.ndim > len(shape):
        return None
    whole = (*(1 for _ in range(len(shape) - constant.ndim)), *constant.shape)
    if any(extent != 1 for index, extent in enumerate(whole) if index != axis) or whole[axis] not in (1, shape[axis]):
        return None
    return np.asarray(constant, np.float64).reshape(-1)
