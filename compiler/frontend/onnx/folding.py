"""In: an ONNX node that computes on constants alone. Out: a constant. Always: nothing here reads what the caller feeds.

Exporters write arithmetic on shapes into the model. With static shapes all of it is constant, so these operators need
no counterpart in our graph.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.frontend.onnx.attributes import OnnxNode
from compiler.frontend.onnx.elementwise import Converter
from compiler.graph.builder import GraphBuilder
from compiler.graph.ir import Array


def _numpy(function: Callable[..., Any]) -> Converter:
    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        arrays = [node.array(builder, i, f"operand {i}") for i in range(len(node.inputs))]
        return [builder.constant(np.asarray(function(*arrays)), node.outputs[0])]

    return convert


def _range(start: Array, limit: Array, delta: Array) -> Array:
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _reduce_prod(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    axes = node.axes(builder, 1, 18)
    array = node.array(builder, 0, "the operand")
    product = np.prod(array, axis=axes or None, keepdims=bool(node.integer("keepdims", 1)), dtype=array.dtype)
    return [builder.constant(np.asarray(product), node.outputs[0])]


def _mod(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return _numpy(np.fmod if node.integer("fmod", 0) else np.mod)(builder, node)


CONVERTERS: Mapping[str, Converter] = {
    "And": _numpy(np.logical_and),
    "Equal": _numpy(np.equal),
    "Greater": _numpy(np.greater),
    "GreaterOrEqual": _numpy(np.greater_equal),
    "Less": _numpy(np.less),
    "LessOrEqual": _numpy(np.less_equal),
    "Mod": _mod,
    "Not": _numpy(np.logical_not),
    "Or": _numpy(np.logical_or),
    "Range": _numpy(_range),
    "ReduceProd": _reduce_prod,
    "Sign": _numpy(np.sign),
    "Tile": _numpy(np.tile),
    "Where": _numpy(np.where),
}
