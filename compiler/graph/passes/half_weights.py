"""Graph passes on the weights of convolutions of halves, which fit them to the instructions of kernels."""

import numpy as np

from retune.compiler.core.dtype import BFLOAT16, HALVES
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ops.conv import is_channels_last


def pair_channels(graph: Graph) -> Graph:
    """Give convolutions of bfloat16 an even number of input channels, by a channel of zeros: instructions sum products
    in pairs. A network's first layer has three channels.

    before: y = conv2d(x[N, H, W, 3], w[KH, KW, 3, O])
    after:  y = conv2d(x[N, H, W, 3], w[KH, KW, 4, O])      the operator pads x
    """
    return rewrite(graph, _pair)


def _pair(builder: GraphBuilder, node: Node) -> str | None:
    if node.op != "conv2d" or node.integer("groups") > 1 or not is_channels_last(node):
        return None
    weight = builder.array(node.inputs[1])
    channels = 0 if weight is None or weight.dtype.name != BFLOAT16 else weight.shape[2]
    if weight is None or channels % 2 == 0 or channels == 1:
        return None
    even = builder.constant(np.pad(weight, ((0, 0), (0, 0), (0, 1), (0, 0))), node.inputs[1])
    return builder.emit(node.op, [node.inputs[0], even], node.attrs, name=node.name, output=node.output)


def widen_weights(graph: Graph) -> Graph:
    """Store constant depthwise weights of halves as float32: they are small beside the image, and kernels would convert
    them for each element of the result.

    before: y = conv2d(x[N, H, W, C], w: float16[KH, KW, C])
    after:  y = conv2d(x[N, H, W, C], w: float32[KH, KW, C])
    """
    return rewrite(graph, _widen)


def _widen(builder: GraphBuilder, node: Node) -> str | None:
    if node.op != "conv2d" or not is_channels_last(node):
        return None
    weight = builder.array(node.inputs[1])
    is_half = weight is not None and weight.dtype.name in HALVES
    if weight is None or not is_half or node.integer("groups") != weight.shape[-1]:
        return None
    wide = builder.constant(weight.astype(np.float32), node.inputs[1])
    return builder.emit(node.op, [node.inputs[0], wide], node.attrs, name=node.name, output=node.output)
