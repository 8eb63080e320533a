"""Sub-pixel decomposition of channels-last transposed convolutions: one ordinary convolution per phase of the stride.

The same products are computed, and the result has the memory layout of the transposed convolution.
"""

from dataclasses import dataclass

import numpy as np

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Array, Attribute, Graph, Node
from retune.compiler.graph.verify import infer_value


@dataclass(frozen=True, slots=True)
class SubpixelConv:
    """Compute a transposed convolution phase by phase. Its weights must be constant and its strides divide its result.

        before: y = conv_transpose2d(x, w)              of (N, H, W, O)
        after:  y = reshape(conv_phases2d(x, w'))       of (N, H / s, s, W / s, s, O), the same memory

    Operators that follow can then be fused with the phases instead of waiting for a stage that interleaves them.
    """

    name: str = "subpixel_conv"

    def apply(self, graph: Graph) -> Graph:
        return rewrite(graph, _convert)


def _convert(builder: GraphBuilder, node: Node) -> str | None:
    if node.op != "conv_transpose2d" or node.text("layout") != "NHWC":
        return None
    weight, strides, before = builder.array(node.inputs[1]), node.ints("strides"), node.ints("pads")[:2]
    shape = infer_value(node, tuple(map(builder.value, node.inputs))).shape
    extents = tuple(zip(shape[1:3], strides, strict=True))
    if weight is None or max(strides) == 1 or any(extent % stride for extent, stride in extents):
        return None
    for axis, (stride, cut) in enumerate(zip(strides, before, strict=True)):
        weight = _by_phase(weight, axis, stride, cut)
    size = tuple(extent // stride for extent, stride in extents)
    operand = builder.constant(weight, f"{node.inputs[1]}_phases")
    attrs: dict[str, Attribute] = {"strides": strides, "pads": before, "size": size, "layout": "NHWC"}
    made = builder.emit("conv_phases2d", [node.inputs[0], operand], attrs, name=node.name)
    return builder.emit("reshape", [made], {"shape": shape}, output=node.output)


def _by_phase(weight: Array, axis: int, stride: int, cut: int) -> Array:
    """The taps along `axis` in phase order, zero-padded to a multiple of the stride: tap a + stride * r is the r-th tap
    of the elements a, a + stride, ... of a result that begins after `cut`.
    """
    # Zero taps make all phases equally long, so that one kernel computes them.
    missing = -weight.shape[axis] % stride
    filled = np.pad(weight, [(0, missing if dim == axis else 0) for dim in range(weight.ndim)])
    order = [(tap + cut) % stride + tap // stride * stride for tap in range(filled.shape[axis])]
    return np.take(filled, order, axis)
