"""Replaces quantize and dequantize nodes by integer arithmetic: products of bytes that accumulate in int32.

The integer sums are exact. No `quantize` or `dequantize` remains.

A quantized number q stands for scale * (q - zero). Four steps, each a rewrite of the graph:

1. layout operators move before `dequantize`, so that each `dequantize` meets its consuming operator; what lies between
the bytes of one value and its next quantization becomes a table
2. a product of two dequantized values becomes an int32 product of bytes times both scales; the zero points contribute
one constant per channel, since padding holds the zero point, or sums of rows and columns of activations
3. the remaining nodes become arithmetic, which is fused into neighboring kernels (`requantize`)
4. the scale of a result divides the scale of the product before it: one multiplication per element
"""

import numpy as np

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.byte_products import (
    PRODUCTS,
    Quantity,
    add_bias,
    flip_sign,
    join_product,
    quantity_of,
)
from retune.compiler.graph.passes.lookup_tables import lookup_of
from retune.compiler.graph.passes.requantize import ScaleDivider, ScaleWriter

_CONVERSIONS = ("quantize", "dequantize")


def compute_quantized(graph: Graph) -> Graph:
    """Compute with bytes in quantized networks.

    before: y = quantize(relu(add(conv2d(dequantize(x), dequantize(w)), dequantize(b))))
    after:  y = saturate(relu(cast(qconv2d(x, w) + b') * s), zero), with s of all three scales
    """
    if not any(node.op in ("quantize", "dequantize") for node in graph.nodes):
        return graph
    graph = rewrite(rewrite(graph, _make_unsigned), _join)
    graph = rewrite(graph, ScaleWriter(graph).write)
    return rewrite(graph, ScaleDivider(graph).move)


def _dequantize(builder: GraphBuilder, node: Node, numbers: Quantity, name: str, axis: int) -> str:
    operands = [name, builder.constant(numbers.scale, "scale"), builder.constant(numbers.zero, "zero")]
    return builder.emit("dequantize", operands, {"axis": axis}, name=node.name, output=node.output)


def _make_unsigned(builder: GraphBuilder, node: Node) -> str | None:
    """Quantization to int8 -> to uint8 with a zero point 128 higher, which x86 multiplies by int8 as it is: the
    correction for flipped signs joins the bias instead of every sum.
    """
    scale, zero = (builder.array(name) for name in node.inputs[1:]) if node.op in _CONVERSIONS else (None, None)
    if scale is None or zero is None or zero.dtype != np.int8:
        return None
    inputs = [*node.inputs[:2], builder.constant((zero.astype(np.int16) + 128).astype(np.uint8), "zero")]
    if node.op == "quantize":
        return flip_sign(builder, builder.emit("quantize", inputs, node.attrs, name=node.name), node.output)
    bits = builder.producer(node.inputs[0])
    turned = builder.producer(bits.inputs[0]) if bits is not None and bits.op == "bits" else None
    source = builder.producer(turned.inputs[0]) if turned is not None and turned.op == "bit_xor" else None
    if source is None or source.op != "quantize":
        return None
    return builder.emit("dequantize", [source.output, *inputs[1:]], node.attrs, name=node.name, output=node.output)


def _join(builder: GraphBuilder, node: Node) -> str | None:
    if node.op in PRODUCTS:
        return join_product(builder, node)
    if node.op == "add":
        return add_bias(builder, node)
    if node.op == "quantize":
        return _requantize(builder, node)
    return _move(builder, node)


def _requantize(builder: GraphBuilder, node: Node) -> str | None:
    """quantize(dequantize(x)) -> x, with the same scale and zero point; quantize(f(dequantize(x))) -> lookup(x)."""
    numbers = quantity_of(builder, node.inputs[0])
    scale, zero = (builder.array(name) for name in node.inputs[1:])
    if numbers is not None and scale is not None and zero is not None:
        same = numbers.scale.shape == scale.shape and numbers.zero.dtype == zero.dtype
        same = same and (scale.size == 1 or numbers.axis == node.integer("axis"))
        if same and (numbers.scale == scale).all() and (numbers.zero == zero).all():
            return numbers.name
    return lookup_of(builder, node)


def _move(builder: GraphBuilder, node: Node) -> str | None:
    """move(dequantize(x)) -> dequantize(move(x)) for operators that move elements, or choose the largest."""
    if node.op not in ("reshape", "transpose", "slice", "gather", "concat", "max_pool2d", "broadcast_to"):
        return None
    moved = node.inputs[:1] if node.op == "gather" else node.inputs
    parts = [numbers for name in moved if (numbers := quantity_of(builder, name)) is not None]
    if len(parts) < len(moved):
        return None
    first = parts[0]
    alike = len({builder.value(part.name).dtype for part in parts}) == 1
    alike = alike and all((p.scale == first.scale).all() and (p.zero == first.zero).all() for p in parts if p.uniform)
    axis = first.axis if first.uniform else _axis_behind(builder, node, first)
    # A negative scale makes the largest byte the smallest number.
    alike = alike and (node.op != "max_pool2d" or bool((first.scale > 0).all()))
    if axis is None or not alike or (len(parts) > 1 and not all(part.uniform for part in parts)):
        return None
    operands = [*(part.name for part in parts), *node.inputs[len(moved) :]]
    return _dequantize(builder, node, first, builder.emit(node.op, operands, node.attrs, name=node.name), axis)


def _axis_behind(builder: GraphBuilder, node: Node, numbers: Quantity) -> int | None:
    """The axis of the result with a scale per element, if any."""
    shape, axis = builder.value(numbers.name).shape, numbers.axis
    if node.op == "transpose":
        return node.ints("perm").index(axis)
    if node.op != "reshape":
        return None
    wanted = node.ints("shape")
    if wanted[: axis + 1] == shape[: axis + 1]:
        return axis
    vector = max(shape) == builder.value(numbers.name).size == shape[axis]
    return wanted.index(shape[axis]) if vector and wanted.count(shape[axis]) == 1 else None
