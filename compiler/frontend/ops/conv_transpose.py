"""Converter of ONNX ConvTranspose in one to three dimensions.

The common cases in one and two dimensions map to the operator `conv_transpose2d`. Any other becomes a convolution with
the spatially flipped weight over the zero-stuffed input.
"""

from collections.abc import Mapping, Sequence

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, formula_of
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.frontend.ops.nn import Window, as_channels, plain_convolution, rounded_once, spatial_rank
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute


def _conv_transpose(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape, weight = builder.value(x).shape, node.operand(builder, 1)
    kernel, groups = weight.shape[2:], node.integer("group", 1)
    rank = spatial_rank(node, len(shape), kernel)
    strides = node.ints("strides") or (1,) * rank
    dilations = node.ints("dilations") or (1,) * rank
    extra = node.ints("output_padding") or (0,) * rank
    reach = tuple(dilation * (size - 1) for size, dilation in zip(kernel, dilations, strict=True))
    before, after = _cut_off(node, shape[2:], strides, reach, extra)
    if rank < 3 and groups == 1 and set(dilations) == {1} and min(before) >= 0:
        # May be negative, if `output_padding` adds more than the pads cut off.
        end_cuts = [cut - more for cut, more in zip(after, extra, strict=True)]
        x = _emit_phased(builder, x, weight.name, strides, before, end_cuts, node.name)
    else:
        for axis in range(rank):
            x = _spread(builder, x, axis + 2, strides[axis])
        # The full transposed convolution is a convolution padded by the kernel's reach; elements that are cut off need
        # no padding.
        low = [edge - cut for edge, cut in zip(reach, before, strict=True)]
        high = [edge - cut + more for edge, cut, more in zip(reach, after, extra, strict=True)]
        # The operator has no negative padding: more is cut off than the kernel reaches.
        x = _without(builder, x, [max(0, -pad) for pad in low], [max(0, -pad) for pad in high])
        turned = _reverse_kernel(builder, weight.name, groups)
        pads = tuple(max(0, pad) for pad in (*low, *high))
        x = plain_convolution(builder, x, turned, Window((1,) * rank, pads, dilations, groups), node.name)
    if node.has_input(2):
        x = write("add", x, as_channels(builder, node.inputs[2], rank + 2))
    return [x]


def _emit_phased(
    builder: GraphBuilder,
    x: str,
    weight: str,
    strides: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    name: str,
) -> str:
    """The operator for two dimensions; a 1-D input gets a height axis of extent 1."""
    flat = [0] * (2 - len(strides))
    if flat:
        x, weight = (_with_a_row(builder, value) for value in (x, weight))
    attrs: dict[str, Attribute] = {
        "strides": (*(1 for _ in flat), *strides),
        "pads": (*flat, *before, *flat, *after),
        "layout": "NCHW",
    }
    x = builder.emit("conv_transpose2d", [x, weight], attrs, name=name)
    if not flat:
        return x
    shape = builder.value(x).shape
    return builder.emit("reshape", [x], {"shape": (*shape[:2], shape[3])})


def _with_a_row(builder: GraphBuilder, value: str) -> str:
    """(A, B, L) as (A, B, 1, L)."""
    *front, extent = builder.value(value).shape
    return builder.emit("reshape", [value], {"shape": (*front, 1, extent)})


def _cut_off(
    node: OnnxNode, extents: Sequence[int], strides: Sequence[int], reach: Sequence[int], extra: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Elements of the full result to cut off before and after."""
    rank = len(extents)
    auto, wanted = node.text("auto_pad", "NOTSET"), node.ints("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(extent * stride for extent, stride in zip(extents, strides, strict=True))
    if wanted is None:
        pads = (node.ints("pads") or (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
        return pads[:rank], pads[rank:]
    sizes = zip(extents, strides, reach, extra, wanted[-rank:], strict=True)
    totals = [stride * (extent - 1) + more + edge + 1 - size for extent, stride, edge, more, size in sizes]
    # ONNX's formula: an odd element is cut off the end in SAME_UPPER, off the front in SAME_LOWER.
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _spread(builder: GraphBuilder, x: str, axis: int, stride: int) -> str:
    """Insert stride - 1 zeros between neighbors along an axis."""
    if stride == 1:
        return x
    shape = builder.value(x).shape
    split = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    after = [0] * len(split)
    after[axis + 1] = stride - 1
    x = builder.emit("reshape", [x], {"shape": split})
    border: dict[str, Attribute] = {"pads_before": (0,) * len(split), "pads_after": tuple(after), "value": 0.0}
    x = builder.emit("pad", [x], border)
    wide = shape[axis] * stride
    x = builder.emit("reshape", [x], {"shape": (*shape[:axis], wide, *shape[axis + 1 :])})
    # No zeros after the last element.
    return take(builder, x, axis, range(wide - stride + 1))


def _without(builder: GraphBuilder, x: str, front: Sequence[int], back: Sequence[int]) -> str:
    for index, (low, high) in enumerate(zip(front, back, strict=True)):
        x = take(builder, x, index + 2, range(low, builder.value(x).shape[index + 2] - high))
    return x


def _reverse_kernel(builder: GraphBuilder, weight: str, groups: int) -> str:
    """(I, O/groups, *kernel) as (O, I/groups, *kernel), back to front along the kernel."""
    inputs, outputs, *kernel = builder.value(weight).shape
    tail = range(3, 3 + len(kernel))
    split = builder.emit("reshape", [weight], {"shape": (groups, inputs // groups, outputs, *kernel)})
    swapped = builder.emit("transpose", [split], {"perm": (0, 2, 1, *tail)})
    result = builder.emit("reshape", [swapped], {"shape": (groups * outputs, inputs // groups, *kernel)})
    for index, size in enumerate(kernel):
        result = take(builder, result, index + 2, list(reversed(range(size))))
    return result


CONVERTERS: Mapping[str, Converter] = {"ConvTranspose": rounded_once(_conv_transpose)}
