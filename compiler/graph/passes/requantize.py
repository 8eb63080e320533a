"""Writes `quantize` and `dequantize` as arithmetic that is fused into neighboring kernels.

Every operation is rounded to float32 by itself, so that all instruction sets give the same bits: `rounded_mul` is not
fused with a sum, `true_div` does not become a product.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Graph, Node

INTEGER_PRODUCTS = ("qconv2d", "qconv3d", "qdense", "qbatch_matmul", "qconv_phases2d")
_BETWEEN = ("dequantize", "quantize", "relu", "clip", "rounded_mul", "cast", "add")


def spread(number: Array, shape: tuple[int, ...], axis: int = -1) -> Array:
    """A number, or one per index along `axis`, in the shape for combining with a tensor of `shape`.

    A single number is repeated per channel: a kernel reads it, so that layers of one shape share a kernel.
    """
    if number.size == 1:
        axis = 1 if len(shape) > 3 else len(shape) - 1
        number = np.full(shape[axis] if shape else 1, number.item(), number.dtype)
    if number.ndim > 1 or not shape:
        return number if shape else number.reshape(())
    return number.reshape(-1, *(1 for _ in shape[axis:][1:]))


class ScaleWriter:
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
        while node is not None and node.op not in INTEGER_PRODUCTS:
            node = self._producers.get(node.inputs[0]) if node.op in _BETWEEN else None
        return 0 if node is None else graph.values[node.output].size * graph.values[node.inputs[1]].size

    def write(self, builder: GraphBuilder, node: Node) -> str | None:
        if node.op == "quantize":
            return self._quantize(builder, node)
        return self._dequantize(builder, node) if node.op == "dequantize" else None

    def _quantize(self, builder: GraphBuilder, node: Node) -> str:
        x, kind = builder.value(node.inputs[0]), builder.value(node.inputs[2]).dtype
        scale, zero = (builder.array(name) for name in node.inputs[1:])
        if scale is None or zero is None:
            factor = _column(builder, node, node.inputs[1], x.shape)
            start = builder.emit("cast", [_column(builder, node, node.inputs[2], x.shape)], {"dtype": "int32"})
        else:
            factor = _constant(builder, node, scale.astype(x.dtype), x.shape)
            start = _constant(builder, node, zero.astype(np.int32), x.shape)
        ratio = builder.emit("true_div", [x.name, factor])
        return builder.emit("saturate", [ratio, start], {"dtype": kind}, name=node.name, output=node.output)

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
        return builder.emit("rounded_mul", [real, factor], name=node.name, output=node.output)

    def _whole(self, builder: GraphBuilder, node: Node, zero: Array, dtype: str) -> str:
        """The stored integers minus the zero point; values without other readers are not stored but only clamped."""
        x = builder.value(node.inputs[0])
        origin = self._producers[node.output].inputs[0]
        made, stored = self._producers.get(origin), builder.producer(x.name)
        alone = made is not None and made.op == "quantize" and self._uses[origin] == 1
        alone = alone and node.output not in self._stored
        if not alone or stored is None or stored.op != "saturate":
            real = builder.emit("cast", [x.name], {"dtype": dtype})
            offset = _constant(builder, node, -zero.astype(dtype), x.shape)
            return builder.emit("add", [real, offset]) if zero.any() else real
        real, limits = builder.emit("round", stored.inputs[:1]), np.iinfo(x.dtype)
        for op, limit in (("maximum", limits.min), ("minimum", limits.max)):
            real = builder.emit(op, [real, _constant(builder, node, limit - zero.astype(dtype), x.shape)])
        return real


class ScaleDivider:
    """Step 4: a division by the scale of a result divides the constant scale of the product instead, as ONNX Runtime
    does: (sx * sw) / sy in float32, one multiplication per element.
    """

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._uses = _uses(graph)

    def move(self, builder: GraphBuilder, node: Node) -> str | None:
        """relu(x * s) / t -> relu(x * (s / t)), and the same for clip, maximum and minimum, for integers x."""
        scale = builder.array(node.inputs[1]) if node.op == "true_div" else None
        if scale is None or not (scale > 0).all():
            return None
        origin = self._producers[node.output].inputs[0]
        return self._divide(builder, origin, node.inputs[0], node.inputs[1], node.output)

    def _divide(self, builder: GraphBuilder, origin: str, name: str, by: str, output: str = "") -> str | None:
        """The quotient of `name`, the rewritten `origin`, by the constant `by`; None if it needs a division."""
        source, before = builder.producer(name), self._producers.get(origin)
        if source is None or before is None or before.op != source.op or self._uses[origin] > 1:
            return None
        attrs, rest = source.attrs, source.inputs[1:]
        if source.op == "rounded_mul":
            whole = builder.producer(source.inputs[0])
            is_sum = whole is not None and whole.op == "cast" and builder.value(whole.inputs[0]).dtype == "int32"
            if not is_sum or builder.array(rest[0]) is None:
                return None
            factor = builder.emit("true_div", [rest[0], by])
            return builder.emit("rounded_mul", [source.inputs[0], factor], name=source.name, output=output)
        if source.op not in ("relu", "clip", "maximum", "minimum") or not all(map(builder.is_constant, rest)):
            return None
        # Rounding is monotonic, so a bound is divided without a difference.
        inner = self._divide(builder, before.inputs[0], source.inputs[0], by)
        if inner is None:
            return None
        if source.op == "clip":
            # The bounds become one number per channel, which clip's attributes cannot hold.
            bounds = [builder.scalar(source.number(key), "float32") for key in ("low", "high")]
            inner = builder.emit("maximum", [inner, builder.emit("true_div", [bounds[0], by])])
            source_op, rest, attrs = "minimum", (bounds[1],), {}
        else:
            source_op = source.op
        operands = [inner, *(builder.emit("true_div", [bound, by]) for bound in rest)]
        return builder.emit(source_op, operands, attrs, name=source.name, output=output)


def _constant(builder: GraphBuilder, node: Node, number: Array, shape: tuple[int, ...]) -> str:
    return builder.constant(spread(number, shape, node.integer("axis")), "scale")


def _column(builder: GraphBuilder, node: Node, name: str, shape: tuple[int, ...]) -> str:
    """A computed scale or zero point in the shape for combining with a tensor of `shape`."""
    size = builder.value(name).size
    wanted = (size, *(1 for _ in shape[node.integer("axis") :][1:])) if size > 1 else ()
    return builder.emit("reshape", [name], {"shape": wanted})


def _uses(graph: Graph) -> Counter[str]:
    return Counter([name for node in graph.nodes for name in node.inputs] + list(graph.outputs))
