"""Layers of a network, the precisions that each can be computed in, and the ranges of their operands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.byte_products import MOST_PRODUCTS

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"
DYNAMIC = "int8-dynamic"
FORMS = (BFLOAT16, INT8, DYNAMIC)
"""Precisions of a layer besides float32.

bfloat16      operands are rounded, sums are float32
int8          bytes with scales that are known before the network runs, sums are int32
int8-dynamic  as int8, but the scale of the activations is computed at run time; each row of a matrix has its own
"""

PRODUCTS = ("dense", "batch_matmul", "conv2d", "conv3d", "conv_transpose2d")
_QUANTIZED = ("quantize", "dequantize", "qconv2d", "qconv3d", "qdense", "qbatch_matmul")
MOVES = ("reshape", "transpose", "slice", "concat", "max_pool2d")
"""Operators that move elements, or choose the largest: they commute with rounding."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A product or a convolution: the name of its result, its operator, its computed operands, and its FORMS."""

    name: str
    op: str
    operands: tuple[str, ...]
    forms: tuple[str, ...]
    flops: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """The precision of each layer by name, float32 where missing, and the (least, largest) value of what layers in
    int8 read.
    """

    layers: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """The layers of a float32 graph, in its order. A product of dequantized numbers is none: it has a precision."""
    producers = graph.producers()
    made = {name for name, node in producers.items() if node.op == "dequantize"}
    layers = []
    for node in graph.nodes:
        is_float = all(graph.values[name].dtype == FLOAT32 for name in node.inputs)
        if node.op in PRODUCTS and is_float and not made.intersection(node.inputs):
            operands = tuple(dict.fromkeys(name for name in node.inputs if name not in graph.constants))
            layers.append(Layer(node.output, node.op, operands, _forms(graph, node), _flops(graph, node)))
    return tuple(layer for layer in layers if layer.operands)


def _forms(graph: Graph, node: Node) -> tuple[str, ...]:
    weight = graph.values[node.inputs[1]]
    has_weights = node.inputs[1] in graph.constants and node.inputs[0] not in graph.constants
    terms = weight.shape[1] if node.op == "batch_matmul" else weight.size // max(_channels(node, weight.shape), 1)
    if terms > MOST_PRODUCTS:
        return (BFLOAT16,)
    if node.op == "batch_matmul":
        return (BFLOAT16, INT8)
    if not has_weights or node.op not in ("dense", "conv2d"):
        return (BFLOAT16,)
    return FORMS


def _channels(node: Node, shape: Sequence[int]) -> int:
    """The number of results of a weight."""
    return shape[channel_axis(node.op)]


def channel_axis(op: str) -> int:
    """The axis of a weight with a scale for each element."""
    return 1 if op == "dense" else 0


def _flops(graph: Graph, node: Node) -> float:
    weight = graph.values[node.inputs[1]]
    terms = weight.shape[1] if node.op == "batch_matmul" else weight.size // max(_channels(node, weight.shape), 1)
    return 2.0 * graph.values[node.output].size * terms


def is_quantized(graph: Graph) -> bool:
    """Whether the network came with bytes to compute with."""
    return any(node.op in _QUANTIZED for node in graph.nodes)


def values_read(graph: Graph) -> tuple[str, ...]:
    """The values whose ranges int8 needs: what layers read, and what moves of elements make these from."""
    producers, read = graph.producers(), dict[str, None]()
    stack = [name for layer in layers_of(graph) if INT8 in layer.forms for name in layer.operands]
    while stack:
        name = stack.pop()
        if name not in read and name not in graph.constants:
            read[name] = None
            node = producers.get(name)
            stack += node.inputs if node is not None and node.op in MOVES else ()
    return tuple(name for name in graph.values if name in read)
