"""Sub-pixel decomposition of channels-last transposed convolutions: one ordinary convolution per phase of the stride.

The same products are computed, and the result has the memory layout of the transposed convolution.
"""

from collections.abc import Mapping

import numpy as np

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Array, Attribute, Graph, Node
from retune.compiler.graph.verify import infer_value


def split_by_phase(graph: Graph) -> Graph:
    """Compute a transposed convolution phase by phase. Its weights must be constant and its strides divide its result.

        before: y = conv_transpose2d(x, w)              of (N, H, W, O)
        after:  y = reshape(conv_phases2d(x, w'))       of (N, H / s, s, W / s, s, O), the same memory

    Operators that follow can then be fused with the phases instead of waiting for a stage that interleaves them.
    """
    return rewrite(graph, _convert)


def _convert(builder: GraphBuilder, node: Node) -> str | None:
    if node.op != "conv_transpose2d" or node.text("layout") != "NHWC":
        return None
    weight, attrs = builder.array(node.inputs[1]), phases_of(builder, node)
    if weight is None or attrs is None:
        return None
    operand = builder.constant(ordered_by_phase(weight, attrs), f"{node.inputs[1]}_phases")
    made = builder.emit("conv_phases2d", [node.inputs[0], operand], attrs, name=node.name)
    shape = infer_value(node, tuple(map(builder.value, node.inputs))).shape
    return builder.emit("reshape", [made], {"shape": shape}, output=node.output)


def phases_of(builder: GraphBuilder, node: Node, *, rounds_up: bool = False) -> dict[str, Attribute] | None:
    """The attributes of the channels-last convolution by phases for a transposed convolution; None where it has one
    phase, or some phase would be shorter, unless it `rounds_up`: the result is then longer.
    """
    strides, first = node.ints("strides"), 1 if node.text("layout") == "NHWC" else 2
    shape = infer_value(node, tuple(map(builder.value, node.inputs))).shape[first : first + 2]
    is_even = not any(extent % stride for extent, stride in zip(shape, strides, strict=True))
    if max(strides) == 1 or not (is_even or rounds_up):
        return None
    size = tuple(-(-extent // stride) for extent, stride in zip(shape, strides, strict=True))
    return {"strides": strides, "pads": node.ints("pads")[:2], "size": size, "layout": "NHWC"}


def ordered_by_phase(weight: Array, attrs: Mapping[str, Attribute]) -> Array:
    """The weight (KH, KW, I, O) with its taps in the order of the phases `attrs`, of `phases_of`."""
    strides, before = attrs["strides"], attrs["pads"]
    assert isinstance(strides, tuple), "a number for each axis"
    assert isinstance(before, tuple), "a number for each axis"
    for axis, (stride, cut) in enumerate(zip(strides, before, strict=True)):
        weight = _by_phase(weight, axis, stride, cut)
    return weight


def _by_phase(weight: Array, axis: int, stride: int, cut: int) -> Array:
    """The taps along `axis` in phase order, zero-padded to a multiple of the stride: tap a + stride * r is the r-th tap
    of the elements a, a + stride, ... of a result that begins after `cut`.
    """
    # Zero taps make all phases equally long, so that one kernel computes them.
    missing = -weight.shape[axis] % stride
    filled = np.pad(weight, [(0, missing if dim == axis else 0) for dim in range(weight.ndim)])
    order = [(tap + cut) % stride + tap // stride * stride for tap in range(filled.shape[axis])]
    return np.take(filled, order, axis)
