"""Replaces quantize and dequantize nodes by integer arithmetic: products of bytes that accumulate in int32.

The integer sums are exact. No `quantize` or `dequantize` remains.

A quantized number q stands for scale * (q - zero). Four steps, each a rewrite of the graph:

1. layout operators move before `dequantize`, so that each `dequantize` meets its consuming operator
2. a product of two dequantized values becomes an int32 product of bytes times both scales; the contribution of the zero
points is one constant per channel, since padding holds the zero point, and joins the bias
3. the remaining nodes become arithmetic, which is fused into neighboring kernels
4. the scale of a result, a factor after everything else, moves into the constants before it: one multiplication per
element
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Array, Graph, Node
from retune.compiler.ops.op import broadcast_shapes

BYTES = ("int8", "uint8")
_PRODUCTS = {"conv2d": "qconv2d", "dense": "qdense", "batch_matmul": "qbatch_matmul"}
_BETWEEN = ("dequantize", "quantize", "relu", "clip", "mul", "cast", "add")
# The largest product of a uint8 and an int8 has the magnitude 255 x 128.
_MOST_PRODUCTS = 2**31 // (255 * 128) - 1
"""Longer sums of products could overflow int32."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """Compute with bytes in quantized networks.

    before: y = quantize(relu(add(conv2d(dequantize(x), dequantize(w)), dequantize(b))))
    after:  y = cast(clip(round(relu(cast(qconv2d(x, w) + b') * s)) + zero)), with s of all three scales
    """

    name: str = "quantized"

    def apply(self, graph: Graph) -> Graph:
        if not any(node.op in ("quantize", "dequantize") for node in graph.nodes):
            return graph
        graph = rewrite(graph, _join)
        graph = rewrite(graph, _Writer(graph).write)
        # Fixpoint iteration: each step moves a factor past one node, so there are at most as many steps as nodes.
        for _ in range(len(graph.nodes)):
            smaller = rewrite(graph, _Factors(graph).move)
            if str(smaller) == str(graph):
                break
            graph = smaller
        return graph


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A dequantized value: its integers `name`, `scale`, `zero` point, and the `axis` along which both vary."""

    name: str
    scale: Array
    zero: Array
    axis: int

    @property
    def uniform(self) -> bool:
        return self.scale.size == 1


def _numbers(builder: GraphBuilder, name: str) -> _Numbers | None:
    """The quantized form of `name`, if its scale and zero point are constant."""
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
    """move(dequantize(x)) -> dequantize(move(x)) for operators that move elements, or choose the largest."""
    if node.op not in ("reshape", "transpose", "slice", "gather", "concat", "max_pool2d", "broadcast_to"):
        return None
    moved = node.inputs[:1] if node.op == "gather" else node.inputs
    parts = [numbers for name in moved if (numbers := _numbers(builder, name)) is not None]
    if len(parts) < len(moved):
        return None
    first = parts[0]
    alike = len({builder.value(part.name).dtype for part in parts}) == 1
    alike = alike and all((p.scale == first.scale).all() and (p.zero == first.zero).all() for p in parts if p.uniform)
    axis = first.axis if first.uniform else _axis_behind(builder, node, first)
    if axis is None or not alike or (len(parts) > 1 and not all(part.uniform for part in parts)):
        return None
    operands = [*(part.name for part in parts), *node.inputs[len(moved) :]]
    return _dequantized(builder, node, first, builder.emit(node.op, operands, node.attrs, name=node.name), axis)


def _axis_behind(builder: GraphBuilder, node: Node, numbers: _Numbers) -> int | None:
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


def _product(builder: GraphBuilder, node: Node) -> str | None:
    """A convolution or matrix product of dequantized values -> a product of bytes, times the scales; else None."""
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
    # The weight's zero point is subtracted at compile time. If a difference of two bytes does not fit a byte, the
    # product stays in float.
    weight = raw.astype(np.int32) - w.zero.astype(np.int32).reshape(along if w.zero.size > 1 else ())
    others = tuple(axis for axis in range(raw.ndim) if axis != channel)
    if abs(weight).max(initial=0) > 127 or weight.size // raw.shape[channel] > _MOST_PRODUCTS:
        return None
    zero = int(x.zero.item())
    # sum((q - zero) * w) = sum(q * w) - zero * sum(w). Padding holds the zero point, so the second sum is the same at
    # the border.
    sums = -zero * weight.sum(axis=others)
    spread = [-1] if node.op == "dense" else [1, -1, *(1 for _ in raw.shape[2:])]
    weight = _filled_channels(node, weight)
    operands = [x.name, builder.constant(weight.astype(np.int8), node.inputs[1])]
    attrs = dict(node.attrs) if node.op == "dense" else {**node.attrs, "pad_value": zero}
    whole = builder.emit(_PRODUCTS[node.op], operands, attrs, name=node.name)
    if sums.any():
        whole = builder.emit("add", [whole, builder.constant(sums.astype(np.int32).reshape(spread), "zeros")])
    # In float64 and rounded once, where a product of float32 scales at run time would round twice.
    scale = (x.scale.astype(np.float64) * w.scale).astype(np.float32)
    return _scaled(builder, node, whole, scale.reshape(spread if scale.size > 1 else ()))


def _filled_channels(node: Node, weight: Array) -> Array:
    """The weight, zero-padded to a multiple of four channels, which are summed together."""
    if node.op != "conv2d" or node.integer("groups") > 1 or weight.shape[1] == 1:
        return weight
    # x86 (vpdpbusd) and Arm (sdot) add four products of bytes into each int32.
    return np.pad(weight, ((0, 0), (0, -weight.shape[1] % 4), (0, 0), (0, 0)))


def _batch_product(builder: GraphBuilder, node: Node, a: _Numbers, b: _Numbers) -> str | None:
    """A product of two computed operands without zero points."""
    if not b.uniform or builder.value(b.name).dtype not in BYTES or a.zero.any() or b.zero.any():
        return None
    if builder.value(a.name).shape[2] > _MOST_PRODUCTS:
        return None
    whole = builder.emit("qbatch_matmul", [a.name, b.name], name=node.name)
    return _scaled(builder, node, whole, (a.scale.astype(np.float64) * b.scale).astype(np.float32).reshape(()))


def _scaled(builder: GraphBuilder, node: Node, whole: str, scale: Array) -> str:
    """Integers times a scale."""
    real = builder.emit("cast", [whole], {"dtype": "float32"})
    factor = builder.constant(_spread(scale, builder.value(whole).shape), "scale")
    return builder.emit("mul", [real, factor], name=node.name, output=node.output)


def _spread(number: Array, shape: tuple[int, ...], axis: int = -1) -> Array:
    """A number, or one per index along `axis`, in the shape for combining with a tensor of `shape`.

    A single number is repeated per channel: a kernel reads it, so that layers of one shape share a kernel.
    """
    if number.size == 1:
        axis = 1 if len(shape) > 3 else len(shape) - 1
        number = np.full(shape[axis] if shape else 1, number.item(), number.dtype)
    if number.ndim > 1 or not shape:
        return number if shape else number.reshape(())
    return number.reshape(-1, *(1 for _ in shape[axis:][1:]))


def _biased(builder: GraphBuilder, node: Node) -> str | None:
    """product * scale + dequantize(bias) -> (product + bias) * scale, if the bias has the product's scale."""
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
        # The exporter's float32 product of the two scales may differ from ours in the last bits.
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
        self._stored = frozenset(self._beside(graph))

    def _beside(self, graph: Graph) -> Iterator[str]:
        """Dequantized products added to a heavier product, whose kernel adds them and reads their bytes."""
        for node in graph.nodes:
            if node.op == "add":
                weights = [(self._work(graph, name), name) for name in node.inputs]
                if all(work for work, _ in weights):
                    yield min(weights, key=lambda pair: pair[0])[1]

    def _work(self, graph: Graph, name: str) -> int:
        """Grows with the multiplications after a dequantized value without other readers; 0 if there are none."""
        node = self._producers.get(name)
        if node is None or node.op != "dequantize" or self._uses[node.inputs[0]] > 1:
            return 0
        while node is not None and node.op not in _PRODUCTS.values():
            node = self._producers.get(node.inputs[0]) if node.op in _BETWEEN else None
        return 0 if node is None else graph.values[node.output].size * graph.values[node.inputs[1]].size

    def write(self, builder: GraphBuilder, node: Node) -> str | None:
        if node.op == "quantize":
            return self._quantize(builder, node)
        return self._dequantize(builder, node) if node.op == "dequantize" else None

    def _quantize(self, builder: GraphBuilder, node: Node) -> str:
        x, kind = builder.value(node.inputs[0]), builder.value(node.inputs[2]).dtype
        scale, zero = (builder.array(name) for name in node.inputs[1:])
        limits = np.iinfo(kind)
        if scale is None or zero is None:
            ratio = builder.emit("div", [x.name, _column(builder, node, node.inputs[1], x.shape)])
            start = builder.emit("cast", [_column(builder, node, node.inputs[2], x.shape)], {"dtype": x.dtype})
            whole = builder.emit("add", [builder.emit("round", [ratio]), start])
        else:
            # A multiplication by the reciprocal is cheaper than a division. At a rounding boundary the value may differ
            # by one quantum.
            factor = (1 / scale.astype(np.float64)).astype(x.dtype)
            whole = builder.emit("mul", [x.name, _constant(builder, node, factor, x.shape)])
            whole = builder.emit("round", [whole])
            if zero.any():
                whole = builder.emit("add", [whole, _constant(builder, node, zero.astype(x.dtype), x.shape)])
        bounded = builder.emit("clip", [whole], {"low": float(limits.min), "high": float(limits.max)})
        return builder.emit("cast", [bounded], {"dtype": kind}, name=node.name, output=node.output)

    def _dequantize(self, builder: GraphBuilder, node: Node) -> str:
        x = builder.value(node.inputs[0])
        scale, zero = (builder.array(name) for name in node.inputs[1:])
        dtype = builder.value(node.inputs[1]).dtype
        if scale is None or zero is None:
            start = builder.emit("cast", [_column(builder, node, node.inputs[2], x.shape)], {"dtype": dtype})
            real = builder.emit("sub", [builder.emit("cast", [x.name], {"dtype": dtype}), start])
            factor = _column(builder, node, node.inputs[1], x.shape)
        else:
            real = self._whole(builder, node, zero, dtype)
            factor = _constant(builder, node, scale, x.shape)
        return builder.emit("mul", [real, factor], name=node.name, output=node.output)

    def _whole(self, builder: GraphBuilder, node: Node, zero: Array, dtype: str) -> str:
        """The stored integers minus the zero point; values without other readers are not stored but only clamped."""
        x = builder.value(node.inputs[0])
        origin = self._producers[node.output].inputs[0]
        made, stored = self._producers.get(origin), builder.producer(x.name)
        alone = made is not None and made.op == "quantize" and self._uses[origin] == 1
        alone = alone and node.output not in self._stored
        bounded = builder.producer(stored.inputs[0]) if alone and stored is not None and stored.op == "cast" else None
        if stored is None or bounded is None or bounded.op != "clip":
            real = builder.emit("cast", [x.name], {"dtype": dtype})
            offset = _constant(builder, node, -zero.astype(dtype), x.shape)
            return builder.emit("add", [real, offset]) if zero.any() else real
        moved = builder.producer(bounded.inputs[0])
        if not zero.any() or moved is None or moved.op != "add":
            return stored.inputs[0]
        real = moved.inputs[0]
        for op, key in (("maximum", "low"), ("minimum", "high")):
            bound = np.asarray(bounded.number(key) - zero.astype(dtype), dtype)
            real = builder.emit(op, [real, _constant(builder, node, bound, x.shape)])
        return real


def _constant(builder: GraphBuilder, node: Node, number: Array, shape: tuple[int, ...]) -> str:
    return builder.constant(_spread(number, shape, node.integer("axis")), "scale")


def _column(builder: GraphBuilder, node: Node, name: str, shape: tuple[int, ...]) -> str:
    """A computed scale or zero point in the shape for combining with a tensor of `shape`."""
    size = builder.value(name).size
    wanted = (size, *(1 for _ in shape[node.integer("axis") :][1:])) if size > 1 else ()
    return builder.emit("reshape", [name], {"shape": wanted})


def _uses(graph: Graph) -> Counter[str]:
    return Counter([name for node in graph.nodes for name in node.inputs] + list(graph.outputs))


class _Factors:
    """Step 4: move a constant factor backward through the operators before it until it meets another constant."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._uses = _uses(graph)

    def move(self, builder: GraphBuilder, node: Node) -> str | None:
        factor = builder.array(node.inputs[1]) if node.op == "mul" else None
        # relu(x) * s = relu(x * s), and the same for clip, minimum and maximum, holds only for s > 0.
        if factor is None or factor.dtype != np.float32 or not (factor > 0).all():
            return None
        origin = self._producers[node.output].inputs[0]
        before, source = self._producers.get(origin), builder.producer(node.inputs[0])
        if before is None or source is None or before.op != source.op or self._uses[origin] > 1:
            return None
        return self._moved(builder, node, source, before)

    def _moved(self, builder: GraphBuilder, node: Node, source: Node, before: Node) -> str | None:
        by, output = node.inputs[1], node.output
        if source.op == "mul" and builder.array(source.inputs[1]) is not None:
            both = builder.emit("mul", [source.inputs[1], by])
            return builder.emit("mul", [source.inputs[0], both], name=source.name, output=output)
        takes = source.op in ("relu", "clip", "maximum", "minimum", "add")
        if not takes or not self._absorbs(builder, before.inputs[0], source.inputs[0]):
            return None
        inner = builder.emit("mul", [source.inputs[0], by])
        if source.op == "relu":
            return builder.emit("relu", [inner], name=source.name, output=output)
        if source.op == "clip":
            # The bounds become one number per channel, which clip's attributes cannot hold.
            low, high = (builder.scalar(source.number(key), "float32") for key in ("low", "high"))
            inner = builder.emit("maximum", [inner, builder.emit("mul", [low, by])])
            return builder.emit("minimum", [inner, builder.emit("mul", [high, by])], name=source.name, output=output)
        if source.op in ("maximum", "minimum", "add") and self._absorbs(builder, before.inputs[1], source.inputs[1]):
            other = builder.emit("mul", [source.inputs[1], by])
            return builder.emit(source.op, [inner, other], name=source.name, output=output)
        return None

    def _absorbs(self, builder: GraphBuilder, origin: str, term: str) -> bool:
        """Whether a factor of this term is free, since the term is a constant or follows a product with a constant."""
        if builder.array(term) is not None:
            return True
        source = builder.producer(term)
        if source is None or self._uses[origin] > 1:
            return False
        if source.op in ("relu", "clip"):
            inner = self._producers.get(origin)
            same = inner is not None and inner.op == source.op
            return inner is not None and same and self._absorbs(builder, inner.inputs[0], source.inputs[0])
        return source.op == "mul" and builder.array(source.inputs[1]) is not None
