"""Gives convolutions of bfloat16 an even number of input channels: instructions sum products in pairs."""

from dataclasses import dataclass

import numpy as np

from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ops.conv import is_channels_last


@dataclass(frozen=True, slots=True)
class PairChannels:
    """Add a channel of zeros to constant weights of an odd number, as of a network's first layer.

    before: y = conv2d(x[N, H, W, 3], w[KH, KW, 3, O])
    after:  y = conv2d(x[N, H, W, 3], w[KH, KW, 4, O])      the operator pads x
    """

    name: str = "pair_channels"

    def apply(self, graph: Graph) -> Graph:
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
