"""Graph pass that stores the weights of depthwise convolutions of halves as float32.

Such a weight is converted for every element of the result, and is small beside the image.
"""

from dataclasses import dataclass

import numpy as np

from retune.compiler.core.dtype import HALVES
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.ops.conv import is_channels_last


@dataclass(frozen=True, slots=True)
class WidenWeights:
    """Store constant depthwise weights of halves as float32.

    before: y = conv2d(x[N, H, W, C], w: float16[KH, KW, C])
    after:  y = conv2d(x[N, H, W, C], w: float32[KH, KW, C])
    """

    name: str = "widen_weights"

    def apply(self, graph: Graph) -> Graph:
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
