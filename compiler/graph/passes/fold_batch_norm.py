"""Replaces batch normalization with known statistics by one multiplication and one addition per channel."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import sum_type
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ops import OPS, FusionKind

Doubles = NDArray[np.float64]


def fold_batch_norm(graph: Graph) -> Graph:
    """Turn batch normalization into a scale and a shift of every channel, which `fold_scales` moves into weights.

    before: y = batch_norm(x)
    after:  y = x * s + t,    s = scale / sqrt(variance + epsilon),    t = bias - mean * s
    """
    return rewrite(graph, _convert)


def _convert(builder: GraphBuilder, node: Node) -> str | None:
    if node.op != "batch_norm":
        return None
    statistics = [builder.array(name) for name in node.inputs[1:]]
    # In float64 and rounded once: bias - mean * s cancels where the mean is large.
    constants = [array.astype(np.float64) for array in statistics if array is not None]
    x, dtype = node.inputs[0], builder.value(node.inputs[0]).dtype
    # What stays arithmetic of halves is computed in float32: x * s may exceed the largest float16 though y does not.
    wide = dtype if len(constants) == 4 and _goes_into_weights(builder, x) else sum_type(dtype)
    operands = [name if wide == dtype else builder.emit("cast", [name], {"dtype": wide}) for name in node.inputs]
    if len(constants) < 4:
        result = _written_out(builder, replace(node, inputs=tuple(operands)))
    else:
        scale, bias, mean, variance = constants
        factor = scale / np.sqrt(variance + node.number("epsilon"))
        scaled = _per_channel(builder, "mul", node, operands[0], factor)
        result = _per_channel(builder, "add", node, scaled, bias - mean * factor)
    return result if wide == dtype else builder.emit("cast", [result], {"dtype": dtype}, output=node.output)


def _goes_into_weights(builder: GraphBuilder, x: str) -> bool:
    """Whether `fold_scales` may move scales of `x` into weights: it is a product with constants, or one with a bias."""
    source = builder.producer(x)
    if source is not None and source.op == "add" and builder.array(source.inputs[1]) is not None:
        source = builder.producer(source.inputs[0])
    return source is not None and OPS[source.op].kind is FusionKind.COMPLEX and builder.is_constant(source.inputs[1])


def _per_channel(builder: GraphBuilder, op: str, node: Node, x: str, numbers: Doubles) -> str:
    value = builder.value(x)
    column = [-1 if i == node.integer("axis") else 1 for i in range(len(value.shape))]
    operand = builder.constant(numbers.reshape(column).astype(value.dtype), f"{node.output}_{op}")
    return builder.emit(op, [x, operand], name=node.name, output=node.output)


def _written_out(builder: GraphBuilder, node: Node) -> str:
    """The definition in primitive operators, for computed statistics."""
    x, *statistics = node.inputs
    dtype = builder.value(x).dtype
    column = tuple(-1 if i == node.integer("axis") else 1 for i in range(len(builder.value(x).shape)))
    shape = tuple(builder.value(x).shape[i] if extent == -1 else 1 for i, extent in enumerate(column))
    scale, bias, mean, variance = (builder.emit("reshape", [name], {"shape": shape}) for name in statistics)
    shifted = builder.emit("add", [variance, builder.scalar(node.number("epsilon"), dtype)])
    factor = builder.emit("div", [scale, builder.emit("sqrt", [shifted])])
    centred = builder.emit("sub", [x, mean])
    return builder.emit("add", [builder.emit("mul", [centred, factor]), bias], name=node.name, output=node.output)
