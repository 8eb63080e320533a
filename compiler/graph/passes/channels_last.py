"""In: convolutions and pools in NCHW. Out: the same in NHWC between transposes. Always: `Simplify` then cancels most.

In NHWC the innermost loop runs over channels, which are contiguous in activations and weights.
"""

from dataclasses import dataclass

from compiler.graph.builder import GraphBuilder, rewrite
from compiler.graph.ir import Graph, Node

_LAST = {"NCHW": "NHWC", "NCDHW": "NDHWC"}
_CONVOLUTIONS = ("conv2d", "conv3d", "qconv2d")
_OPS = (*_CONVOLUTIONS, "max_pool2d", "avg_pool2d")


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """Compute convolutions and pools channels-last.

    before: y = conv2d(x, w)        after: y = transpose(conv2d(transpose(x), w'))
    with w' of (KH, KW, I/groups, O), or (KH, KW, C) when every channel has its own filter.
    """

    name: str = "channels_last"

    def apply(self, graph: Graph) -> Graph:
        """The graph with no convolution or pool in NCHW."""
        return rewrite(graph, _convert)


def _convert(builder: GraphBuilder, node: Node) -> str | None:
    if node.op not in _OPS or node.text("layout") not in _LAST:
        return None
    layout = _LAST[node.text("layout")]
    axes = tuple(range(1, len(layout)))
    to_last, to_first = (0, *axes[1:], 1), (0, axes[-1], *axes[:-1])
    operands = [builder.emit("transpose", [node.inputs[0]], {"perm": to_last}, output=f"{node.inputs[0]}_nhwc")]
    if node.op in _CONVOLUTIONS:
        operands.append(_weight(builder, node))
    attrs = {**node.attrs, "layout": layout}
    result = builder.emit(node.op, operands, attrs, name=node.name, output=f"{node.output}_nhwc")
    return builder.emit("transpose", [result], {"perm": to_first}, output=node.output)


def _weight(builder: GraphBuilder, node: Node) -> str:
    weight = builder.value(node.inputs[1])
    made, taken, *kernel = weight.shape
    depthwise = taken == 1 and node.integer("groups") == made
    perm = (*range(2, len(weight.shape)), 1, 0)
    name = builder.emit("transpose", [weight.name], {"perm": perm}, output=f"{weight.name}_hwio")
    if not depthwise:
        return name
    return builder.emit("reshape", [name], {"shape": (*kernel, made)}, output=f"{weight.name}_hwc")
