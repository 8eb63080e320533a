"""Layout conversion of convolutions and pools from NCHW to NHWC; `Simplify` cancels most of the transposes it adds.

In NHWC the innermost loop runs over channels, which are contiguous in activations and weights.
"""

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node

_LAST = {"NCHW": "NHWC", "NCDHW": "NDHWC"}
_CONVOLUTIONS = ("conv2d", "conv3d", "qconv2d", "qconv3d")
_OPS = (*_CONVOLUTIONS, "conv_transpose2d", "max_pool2d", "avg_pool2d")


def put_channels_last(graph: Graph) -> Graph:
    """Compute convolutions and pools channels-last.

        before: y = conv2d(x, w)        after: y = transpose(conv2d(transpose(x), w'))

    The weight w' has shape (KH, KW, I/groups, O), or (KH, KW, C) for a depthwise convolution. A transposed convolution
    of one-pixel images becomes a matrix product.
    """
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
    if node.op == "conv_transpose2d":
        # Each result element has one product per channel: no sums overlap, so the convolution is a matrix product.
        if _is_one_pixel(builder, node):
            return _product(builder, node)
        weight = node.inputs[1]
        operands.append(builder.emit("transpose", [weight], {"perm": (2, 3, 0, 1)}, output=f"{weight}_hwio"))
    attrs = {**node.attrs, "layout": layout}
    result = builder.emit(node.op, operands, attrs, name=node.name, output=f"{node.output}_nhwc")
    return builder.emit("transpose", [result], {"perm": to_first}, output=node.output)


def _weight(builder: GraphBuilder, node: Node) -> str:
    weight = builder.value(node.inputs[1])
    made, taken, *kernel = weight.shape
    # Without the axis of extent 1, the channels of a depthwise weight are the vector loop's axis.
    depthwise = taken == 1 and 1 < made == node.integer("groups")
    perm = (*range(2, len(weight.shape)), 1, 0)
    name = builder.emit("transpose", [weight.name], {"perm": perm}, output=f"{weight.name}_hwio")
    if not depthwise:
        return name
    return builder.emit("reshape", [name], {"shape": (*kernel, made)}, output=f"{weight.name}_hwc")


def _is_one_pixel(builder: GraphBuilder, node: Node) -> bool:
    return builder.value(node.inputs[0]).shape[2:] == (1, 1) and not any(node.ints("pads"))


def _product(builder: GraphBuilder, node: Node) -> str:
    """The transposed convolution of a pixel: its channels times a matrix with a column for each result element."""
    batch = builder.value(node.inputs[0]).shape[0]
    taken, made, *kernel = builder.value(node.inputs[1]).shape
    last = builder.emit("transpose", [node.inputs[1]], {"perm": (0, 2, 3, 1)})
    columns = builder.emit("reshape", [last], {"shape": (taken, made * kernel[0] * kernel[1])}, output=node.inputs[1])
    rows = builder.emit("reshape", [node.inputs[0]], {"shape": (batch, taken)})
    result = builder.emit("dense", [rows, columns], name=node.name)
    image = builder.emit("reshape", [result], {"shape": (batch, *kernel, made)}, output=f"{node.output}_nhwc")
    return builder.emit("transpose", [image], {"perm": (0, 3, 1, 2)}, output=node.output)
