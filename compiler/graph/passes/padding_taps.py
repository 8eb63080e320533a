"""Drops the outer taps of convolutions that read only padding, as in dilated convolutions over small images."""

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.views import cut
from retune.compiler.ir.dims import may_be_positive
from retune.compiler.ops.conv import LAYOUTS, window_extent

_CONVOLUTIONS = ("conv2d", "conv3d")


def drop_padding_taps(graph: Graph) -> Graph:
    """Slice the weights of convolutions to the taps that meet an element of the input for some result.

    before: y = conv2d(x, w) of 16x16 pixels, w of 3x3 taps, dilations and pads (24, 24)
    after:  y = conv2d(x, w[1:2, 1:2]) without padding

    An infinite weight of a dropped tap made NaN of the padding; now it has no effect.
    """
    return rewrite(graph, _convert)


def _convert(builder: GraphBuilder, node: Node) -> str | None:
    if node.op not in _CONVOLUTIONS:
        return None
    strides, dilations, pads = node.ints("strides"), node.ints("dilations"), list(node.ints("pads"))
    rank = len(strides)
    last = node.text("layout") == LAYOUTS[rank][1]
    first, first_tap = (1, 0) if last else (2, 2)
    extents = builder.value(node.inputs[0]).shape[first : first + rank]
    weight = node.inputs[1]
    taps = builder.value(weight).shape[first_tap : first_tap + rank]
    for dim in range(rank):
        before, after, dilation = pads[dim], pads[rank + dim], dilations[dim]
        results = window_extent(extents[dim], taps[dim], strides[dim], dilation, before, after)
        # Tap t of result r reads index r * stride + t * dilation - before; r runs from 0 to results - 1.
        reach = (results - 1) * strides[dim]
        # Indices ascend with the taps, so the taps that meet the input are consecutive.
        first_reads = ((tap, tap * dilation - before) for tap in range(taps[dim]))
        read = [
            tap
            for tap, index in first_reads
            if may_be_positive(reach + index + 1) and may_be_positive(extents[dim] - index)
        ]
        if not read or len(read) == taps[dim]:
            continue
        kept_before = before - read[0] * dilation
        kept_after = after - (taps[dim] - 1 - read[-1]) * dilation
        # Otherwise the smaller window would need a part of the input.
        if min(kept_before, kept_after) >= 0:
            weight = cut(builder, weight, first_tap + dim, read[0], read[-1] + 1)
            pads[dim], pads[rank + dim] = kept_before, kept_after
    if weight == node.inputs[1]:
        return None
    attrs = {**node.attrs, "pads": tuple(pads)}
    return builder.emit(node.op, [node.inputs[0], weight], attrs, name=node.name, output=node.output)
