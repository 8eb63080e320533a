"""In: a graph with `batch_norm`. Out: one without. Always: a convolution or product before it takes the scale."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.graph.builder import GraphBuilder, rewrite
from compiler.graph.ir import Graph, Node

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FoldBatchNorm:
    """Turn batch normalisation into scaled weights and an addition.

    before: y = batch_norm(conv2d(x, w) [+ b])      after: y = conv2d(x, w * s) [+ b * s] + t
    with s = scale / sqrt(variance + epsilon) and t = bias - mean * s. Where no weight can take it: y = x * s + t.
    """

    name: str = "fold_batch_norm"

    def apply(self, graph: Graph) -> Graph:
        """The graph without batch normalisation."""
        producers, consumers = graph.producers(), graph.consumers()

        def used_once(name: str) -> bool:
            return len(consumers[name]) == 1 and name not in graph.outputs

        def convert(builder: GraphBuilder, node: Node) -> str | None:
            if node.op != "batch_norm":
                return None
            statistics = [builder.array(name) for name in node.inputs[1:]]
            constants = [array.astype(np.float64) for array in statistics if array is not None]
            if len(constants) < 4:
                return _written_out(builder, node)
            scale, bias, mean, variance = constants
            factor = scale / np.sqrt(variance + node.number("epsilon"))
            x = producers[node.output].inputs[0]
            absorbed = None
            if used_once(x):
                inner = producers.get(producers[x].inputs[0]) if x in producers else None
                plain = inner is not None and used_once(inner.output)
                absorbed = _absorbed(builder, node, factor, through_bias=plain)
            if absorbed is None:
                absorbed = _per_channel(builder, "mul", node, node.inputs[0], factor)
            return _per_channel(builder, "add", node, absorbed, bias - mean * factor)

        return rewrite(graph, convert)


def _per_channel(builder: GraphBuilder, op: str, node: Node, x: str, numbers: Doubles) -> str:
    """`x` op a constant that has one number a channel."""
    value = builder.value(x)
    column = [-1 if i == node.integer("axis") else 1 for i in range(len(value.shape))]
    operand = builder.constant(numbers.reshape(column).astype(value.dtype), f"{node.output}_{op}")
    return builder.emit(op, [x, operand], name=node.name, output=node.output)


def _absorbed(builder: GraphBuilder, node: Node, factor: Doubles, *, through_bias: bool) -> str | None:
    """The first operand of the batch norm times `factor`, by scaling constant weights; None when there are none."""
    source = builder.producer(node.inputs[0])
    if source is None:
        return None
    if source.op == "add" and through_bias:
        bias = builder.array(source.inputs[1])
        inner = builder.producer(source.inputs[0])
        if bias is None or inner is None:
            return None
        scaled = _scaled_weights(builder, inner, node.integer("axis"), factor)
        if scaled is None:
            return None
        column = [-1 if i == node.integer("axis") else 1 for i in range(len(builder.value(scaled).shape))]
        moved = bias.astype(np.float64) * factor.reshape(column)
        operand = builder.constant(moved.astype(bias.dtype), source.inputs[1])
        return builder.emit("add", [scaled, operand], name=source.name, output=source.output)
    return _scaled_weights(builder, source, node.integer("axis"), factor)


def _scaled_weights(builder: GraphBuilder, source: Node, axis: int, factor: Doubles) -> str | None:
    """`source` again with its output channels scaled, when it is a product with constant weights along `axis`."""
    weight = builder.array(source.inputs[1]) if source.op in ("conv2d", "dense") else None
    if weight is None:
        return None
    if source.op == "conv2d" and source.text("layout") == "NCHW":
        channel_axis, factor = 1, factor.reshape(-1, 1, 1, 1)
    else:
        channel_axis = len(builder.value(source.output).shape) - 1
    if axis != channel_axis:
        return None
    scaled = (weight.astype(np.float64) * factor).astype(weight.dtype)
    operand = builder.constant(scaled, source.inputs[1])
    return builder.emit(source.op, [source.inputs[0], operand], source.attrs, name=source.name, output=source.output)


def _written_out(builder: GraphBuilder, node: Node) -> str:
    """The definition in primitive operators, for statistics that are computed."""
    x, *statistics = node.inputs
    dtype = builder.value(x).dtype
    column = tuple(-1 if i == node.integer("axis") else 1 for i in range(len(builder.value(x).shape)))
    shape = tuple(builder.value(x).shape[i] if extent == -1 else 1 for i, extent in enumerate(column))
    scale, bias, mean, variance = (builder.emit("reshape", [name], {"shape": shape}) for name in statistics)
    shifted = builder.emit("add", [variance, builder.scalar(node.number("epsilon"), dtype)])
    factor = builder.emit("div", [scale, builder.emit("sqrt", [shifted])])
    centred = builder.emit("sub", [x, mean])
    return builder.emit("add", [builder.emit("mul", [centred, factor]), bias], name=node.name, output=node.output)
