"""In: a graph with `quantize` and `dequantize`. Out: one with products of bytes in place of products of their numbers.

Always: sums of products of bytes are exact; no `quantize` and no `dequantize` is left.

A quantised number stands for scale * (number - zero). Four steps, each a rewrite of the graph:

1. moves of elements are done before the numbers are given their scale, so that these meet what computes with them
2. a product of two dequantised values becomes a product of bytes, summed in int32, times both scales; what zero points
   add to the sums is one constant a channel, since padding holds the zero point, and joins the bias
3. what is left is written as arithmetic, which the kernels of its neighbours take in
4. the scale of a result, a factor behind everything, moves to the constants in front of it: one product an element
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from compiler.graph.builder import GraphBuilder, rewrite
from compiler.graph.infer import broadcast_shapes
from compiler.graph.ir import Array, Graph, Node

BYTES = ("int8", "uint8")
_PRODUCTS = {"conv2d": "qconv2d", "dense": "qdense", "batch_matmul": "qbatch_matmul"}
_MOST_PRODUCTS = 2**31 // (255 * 128) - 1
"""Longer sums of products could leave int32."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """Compute with bytes where a network was quantised.

    before: y = quantize(relu(add(conv2d(dequantize(x), dequantize(w)), dequantize(b))))
    after:  y = cast(clip(round(relu(cast(qconv2d(x, w) + b') * s)) + zero)), with s of all three scales
    """

    name: str = "quantised"

    def apply(self, graph: Graph) -> Graph:
        """The graph in bytes."""
        if not any(node.op in ("quantize", "dequantize") for node in graph.nodes):
            return graph
        graph = rewrite(graph, _join)
        graph = rewrite(graph, _Writer(graph).write)
        for _ in range(len(graph.nodes)):
            smaller = rewrite(graph, _Factors(graph).move)
            if str(smaller) == str(graph):
                break
            graph = smaller
        return graph


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A dequantised value: the whole numbers, their scale and zero point, and the axis these belong to."""

    name: str
    scale: Array
    zero: Array
    axis: int

    @property
    def uniform(self) -> bool:
        return self.scale.size == 1


def _numbers(builder: GraphBuilder, name: str) -> _Numbers | None:
    """What `name` is dequantised from, if its scale and zero point are known."""
    node = builder.producer(name)
    if node is None or node.op != "dequantize":
        return None
    scale, zero = builder.array(node.inputs[1]), builder.array(node.inputs[2])
    return None if scale is None or zero is None else _Numbers(node.inputs[0], scale, zero, node.integer("axis"))


def _dequantized(builder: GraphBuilder, node: Node, numbers: _Numbers, name: str, axis: int) -> str:
    operands = [name, builder.constant(numbers.scale, "scale"), builder.constant(numbers.zero, "zero")]
    return builder.emit("dequantize", operands, {"axis": axis}, name=node.name, output=node.output)


def _join(builder: GraphBuilder, node: Node) -> str | None:
    if node.op in _PRODUCTS:
        return _product(builder, node)
    if node.op == "add":
        return _biased(builder, node)
    if node.op == "quantize":
        return _requantized(builder, node)
    return _moved(builder, node)


def _requantized(builder: GraphBuilder, node: Node) -> str | None:
    """quantize(dequantize(x)) -> x, with the same scale and zero point."""
    numbers = _numbers(builder, node.inputs[0])
    scale, zero = (builder.array(name) for name in node.inputs[1:])
    if numbers is None or scale is None or zero is None:
        return None
    if scale.size > 1 and numbers.axis != node.integer("axis"):
        return None
    same = numbers.scale.shape == scale.shape and numbers.zero.dtype == zero.dtype
    return numbers.name if same and (numbers.scale == scale).all() and (numbers.zero == zero).all() else None


def _moved(builder: GraphBuilder, node: Node) -> str | None:
    """move(dequantize(x)) -> dequantize(move(x)) for what moves elements, or chooses the largest."""
    if node.op not in ("reshape", "transpose", "slice", "gather", "concat", "max_pool2d", "broadcast_to"):
        return None
    moved = node.inputs[:1] if node.op == "gather" else node.inputs
    parts = [numbers for name in moved if (numbers := _numbers(builder, name)) is not None]
    if len(parts) < len(moved):
        return None
    first = parts[0]
    alike = all((p.scale == first.scale).all() and (p.zero == first.zero).all() for p in parts if p.uniform)
    axis = first.axis if first.uniform else _axis_behind(builder, node, first)
    if axis is None or not alike or (len(parts) > 1 and not all(part.uniform for part in parts)):
        return None
    operands = [*(part.name for part in parts), *node.inputs[len(moved) :]]
    return _dequantized(builder, node, first, builder.emit(node.op, operands, node.attrs, name=node.name), axis)


def _axis_behind(builder: GraphBuilder, node: Node, numbers: _Numbers) -> int | None:
    """Which axis of the result is the one that has a scale for each element; None when none is."""
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


def _product(builder: GraphBuilder, node: Node) -> str | None:
    """A convolution or matrix product of dequantised values -> one of bytes, times the scales; else None."""
    x, w = _numbers(builder, node.inputs[0]), _numbers(builder, node.inputs[1])
    if x is None or w is None or not x.uniform or builder.value(x.name).dtype not in BYTES:
        return None
    if node.op == "batch_matmul":
        return _batch_product(builder, node, x, w)
    raw = builder.array(w.name)
    if raw is None or raw.dtype.name not in BYTES:
        return None
    channel = 1 if node.op == "dense" else 0
    if not w.uniform and w.axis != channel:
        return None
    along = [-1 if axis == channel else 1 for axis in range(raw.ndim)]
    weight = raw.astype(np.int32) - w.zero.astype(np.int32).reshape(along if w.zero.size > 1 else ())
    others = tuple(axis for axis in range(raw.ndim) if axis != channel)
    if abs(weight).max(initial=0) > 127 or weight.size // raw.shape[channel] > _MOST_PRODUCTS:
        return None
    zero = int(x.zero.item())
    sums = -zero * weight.sum(axis=others)
    spread = [-1] if node.op == "dense" else [1, -1, *(1 for _ in raw.shape[2:])]
    weight = _filled_channels(node, weight)
    operands = [x.name, builder.constant(weight.astype(np.int8), node.inputs[1])]
    attrs = dict(node.attrs) if node.op == "dense" else {**node.attrs, "pad_value": zero}
    whole = builder.emit(_PRODUCTS[node.op], operands, attrs, name=node.name)
    if sums.any():
        whole = builder.emit("add", [whole, builder.constant(sums.astype(np.int32).reshape(spread), "zeros")])
    scale = (x.scale.astype(np.float64) * w.scale).astype(np.float32)
    return _scaled(builder, node, whole, scale.reshape(spread if scale.size > 1 else ()))


def _filled_channels(node: Node, weight: Array) -> Array:
    """The weight with channels of zeros up to the next multiple of four: as many products are summed at once."""
    if node.op != "conv2d" or node.integer("groups") > 1 or weight.shape[1] == 1:
        return weight
    return np.pad(weight, ((0, 0), (0, -weight.shape[1] % 4), (0, 0), (0, 0)))


def _batch_product(builder: GraphBuilder, node: Node, a: _Numbers, b: _Numbers) -> str | None:
    """A product of two computed operands, where neither has a zero point."""
    if not b.uniform or builder.value(b.name).dtype not in BYTES or a.zero.any() or b.zero.any():
        return None
    if builder.value(a.name).shape[2] > _MOST_PRODUCTS:
        return None
    whole = builder.emit("qbatch_matmul", [a.name, b.name], name=node.name)
    return _scaled(builder, node, whole, (a.scale.astype(np.float64) * b.scale).astype(np.float32).reshape(()))


def _scaled(builder: GraphBuilder, node: Node, whole: str, scale: Array) -> str:
    """Whole numbers times a scale."""
    real = builder.emit("cast", [whole], {"dtype": "float32"})
    return builder.emit("mul", [real, builder.constant(scale, "scale")], name=node.name, output=node.output)


def _biased(builder: GraphBuilder, node: Node) -> str | None:
    """product * scale + dequantize(bias) -> (product + bias) * scale, where the bias has the product's scale."""
    for product, added in (node.inputs, node.inputs[::-1]):
        scaled, bias = builder.producer(product), _numbers(builder, added)
        if scaled is None or scaled.op != "mul" or bias is None or bias.zero.any():
            continue
        real, scale, numbers = (
            builder.producer(scaled.inputs[0]),
            builder.array(scaled.inputs[1]),
            builder.array(bias.name),
        )
        if real is None or real.op != "cast" or scale is None or numbers is None or numbers.dtype != np.int32:
            continue
        whole = builder.value(real.inputs[0])
        alike = scale.size == bias.scale.size and np.allclose(scale.ravel(), bias.scale.ravel(), rtol=1e-6, atol=0)
        if whole.dtype == "int32" and alike and broadcast_shapes(whole.shape, numbers.shape) == whole.shape:
            total = builder.emit("add", [whole.name, builder.constant(numbers, added)])
            return _scaled(builder, node, total, scale)
    return None


class _Writer:
    """Step 3: `quantize` and `dequantize` as arithmetic."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._uses = _uses(graph)

    def write(self, builder: GraphBuilder, node: Node) -> str | None:
        if node.op == "quantize":
            return self._quantize(builder, node)
        return self._dequantize(builder, node) if node.op == "dequantize" else None

    def _quantize(self, builder: GraphBuilder, node: Node) -> str:
        x, zero = builder.value(node.inputs[0]), builder.value(node.inputs[2])
        scale, offset = (_aligned(builder, node, name, x.shape) for name in node.inputs[1:])
        limits = np.iinfo(zero.dtype)
        known = builder.array(scale)
        if known is None:
            ratio = builder.emit("div", [x.name, scale])
        else:
            factor = (1 / known.astype(np.float64)).astype(x.dtype)
            ratio = builder.emit("mul", [x.name, builder.constant(factor, "factor")])
        whole = builder.emit("round", [ratio])
        zeros = builder.array(offset)
        if zeros is None or zeros.any():
            whole = builder.emit("add", [whole, builder.emit("cast", [offset], {"dtype": x.dtype})])
        bounded = builder.emit("clip", [whole], {"low": float(limits.min), "high": float(limits.max)})
        return builder.emit("cast", [bounded], {"dtype": zero.dtype}, name=node.name, output=node.output)

    def _dequantize(self, builder: GraphBuilder, node: Node) -> str:
        x = builder.value(node.inputs[0])
        scale, offset = (_aligned(builder, node, name, x.shape) for name in node.inputs[1:])
        dtype = builder.value(scale).dtype
        origin = self._producers[node.output].inputs[0]
        made, written = self._producers.get(origin), builder.producer(x.name)
        alone = made is not None and made.op == "quantize" and self._uses[origin] == 1
        if alone and written is not None and written.op == "cast":
            real = written.inputs[0]  # a whole number already, and within bounds
        else:
            real = builder.emit("cast", [x.name], {"dtype": dtype})
        zeros = builder.array(offset)
        if zeros is None or zeros.any():
            real = builder.emit("sub", [real, builder.emit("cast", [offset], {"dtype": dtype})])
        return builder.emit("mul", [real, scale], name=node.name, output=node.output)


def _uses(graph: Graph) -> Counter[str]:
    return Counter([name for node in graph.nodes for name in node.inputs] + list(graph.outputs))


def _aligned(builder: GraphBuilder, node: Node, name: str, shape: tuple[int, ...]) -> str:
    """A scale or zero point as it combines with a tensor of `shape`."""
    value = builder.value(name)
    behind = shape[node.integer("axis") + 1 :] if value.size > 1 else ()
    wanted = (value.size, *(1 for _ in behind)) if value.size > 1 else ()
    return name if value.shape == wanted else builder.emit("reshape", [name], {"shape": wanted})


class _Factors:
    """Step 4: a constant factor moves through what lies in front of it, until it meets another constant."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._uses = _uses(graph)

    def move(self, builder: GraphBuilder, node: Node) -> str | None:
        """One step for one product."""
        factor = builder.array(node.inputs[1]) if node.op == "mul" else None
        if factor is None or factor.dtype != np.float32 or not (factor > 0).all():
            return None
        origin = self._producers[node.output].inputs[0]
        before, source = self._producers.get(origin), builder.producer(node.inputs[0])
        if before is None or source is None or before.op != source.op or self._uses[origin] > 1:
            return None
        by = node.inputs[1]
        if source.op == "mul" and builder.array(source.inputs[1]) is not None:
            both = builder.emit("mul", [source.inputs[1], by])
            return builder.emit("mul", [source.inputs[0], both], name=source.name, output=node.output)
        if source.op == "relu":
            inner = builder.emit("mul", [source.inputs[0], by])
            return builder.emit("relu", [inner], name=source.name, output=node.output)
        if source.op == "clip" and factor.size == 1:
            inner = builder.emit("mul", [source.inputs[0], by])
            bounds = {key: source.number(key) * float(factor.item()) for key in ("low", "high")}
            return builder.emit("clip", [inner], bounds, name=source.name, output=node.output)
        pairs = zip(before.inputs, source.inputs, strict=True)
        if source.op == "add" and all(self._takes(builder, *pair) for pair in pairs):
            terms = [builder.emit("mul", [term, by]) for term in source.inputs]
            return builder.emit("add", terms, name=source.name, output=node.output)
        return None

    def _takes(self, builder: GraphBuilder, origin: str, term: str) -> bool:
        """Whether a factor of this term costs nothing, since it is a constant or a product with one."""
        if builder.array(term) is not None:
            return True
        source = builder.producer(term)
        product = source is not None and source.op == "mul" and builder.array(source.inputs[1]) is not None
        return product and self._uses[origin] == 1
