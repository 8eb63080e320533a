"""Converters of ONNX operators that move elements: reshape, transpose, slice, pad and others.

Shapes, axes and slice bounds are constants.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from onnx import helper

from retune.compiler.core.dtype import is_float
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, formula_of
from retune.compiler.frontend.ops.indexing import cut, slice_axis, take
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Attribute
from retune.compiler.ir.dims import integers, may_be_positive, whole
from retune.compiler.ops.op import broadcast_shapes

# Beyond any extent, and far enough from 2^63 that adding an extent does not wrap.
_FAR = 2**62


def _identity(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return [node.operand(builder, 0).name]


def _dropout(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    training = node.has_input(2) and bool(node.array(builder, 2, "training_mode").item())
    ratio = node.array(builder, 1, "the ratio").item() if training and node.has_input(1) else 0.5
    if training and ratio:
        raise node.unsupported("training mode; export the model for inference")
    x = node.operand(builder, 0)
    return [x.name, *([builder.filled(True, "bool", x.shape)] if any(node.outputs[1:]) else [])]


def _constant(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return [builder.constant(constant_array(node), node.outputs[0])]


def constant_array(node: OnnxNode) -> Array:
    """The content of a Constant node. Raises: UnsupportedOperatorError for strings and sparse tensors."""
    tensor = node.tensor("value")
    if tensor is not None:
        return tensor
    if "value_float" in node.attributes:
        return np.asarray(node.number("value_float", 0.0), "float32")
    if "value_floats" in node.attributes:
        return np.asarray(node.numbers("value_floats"), "float32")
    if "value_int" in node.attributes:
        return np.asarray(node.integer("value_int", 0), "int64")
    if "value_ints" in node.attributes:
        return np.asarray(node.ints("value_ints"), "int64")
    raise node.unsupported("only dense numbers are supported")


def _constant_of_shape(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    tensor = node.tensor("value")
    fill = builder.constant((np.zeros(1, "float32") if tensor is None else tensor).reshape(()), "fill")
    shape = node.int_list(builder, 0, "the shape")
    return [builder.emit("broadcast_to", [fill], {"shape": shape}, name=node.name, output=node.outputs[0])]


def _shape(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shape = node.operand(builder, 0).shape
    start, end = node.integer("start", 0), node.integer("end", _FAR)
    return [builder.constant(integers(shape[start:end]), node.outputs[0])]


def _size(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return [builder.constant(integers(node.operand(builder, 0).size), node.outputs[0])]


def _reshape_to(builder: GraphBuilder, node: OnnxNode, shape: tuple[int, ...]) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("reshape", x, shape=shape)]


def _reshape(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    wanted = list(node.int_list(builder, 1, "the shape"))
    if not node.integer("allowzero", 0):
        if any(extent == 0 for extent in wanted[len(x.shape) :]):
            raise node.unsupported("a 0 in the shape copies a dimension that the operand lacks")
        wanted = [x.shape[i] if extent == 0 else extent for i, extent in enumerate(wanted)]
    if -1 in wanted:
        known_size = 1
        for extent in wanted:
            known_size *= extent if extent != -1 else 1
        wanted[wanted.index(-1)] = x.size // known_size if known_size else 0
    return _reshape_to(builder, node, tuple(wanted))


def _flatten(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    axis = node.integer("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return _reshape_to(builder, node, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _squeeze(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shape = node.operand(builder, 0).shape
    axes = node.axes(builder, 1, 13)
    gone = {i for i, n in enumerate(shape) if n == 1} if axes is None else {node.axis(a, len(shape)) for a in axes}
    if any(shape[axis] != 1 for axis in gone):
        raise node.unsupported(f"cannot squeeze axes {sorted(gone)} of shape {list(shape)}")
    return _reshape_to(builder, node, tuple(n for i, n in enumerate(shape) if i not in gone))


def _unsqueeze(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shape = list(node.operand(builder, 0).shape)
    axes = node.axes(builder, 1, 13) or ()
    rank = len(shape) + len(axes)
    for axis in sorted(node.axis(axis, rank) for axis in axes):
        shape.insert(axis, 1)
    return _reshape_to(builder, node, tuple(shape))


def _transpose(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    rank = len(builder.value(x).shape)
    return [write("transpose", x, perm=node.ints("perm") or tuple(reversed(range(rank))))]


def _concat(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shapes = [builder.value(name).shape for name in node.inputs]
    axis = node.axis(node.integer("axis", 0), len(shapes[0]))
    filled = [name for name, shape in zip(node.inputs, shapes, strict=True) if may_be_positive(shape[axis])]
    if len(filled) <= 1:
        return [(filled or node.inputs)[0]]
    return [builder.emit("concat", filled, {"axis": axis}, name=node.name, output=node.outputs[0])]


def _slice(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0).name
    shape = builder.value(x).shape
    first, last = (node.int_list(builder, i, what) for i, what in ((1, "the starts"), (2, "the ends")))
    axes = node.int_list(builder, 3, "the axes") if node.has_input(3) else tuple(range(len(first)))
    jumps = node.int_list(builder, 4, "the steps") if node.has_input(4) else (1,) * len(first)
    for axis, start, stop, step in zip(axes, first, last, jumps, strict=True):
        at = node.axis(axis, len(shape))
        x = slice_axis(builder, x, at, start, stop, step, node.name)
    return [x]


def _split(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    axis = node.axis(node.integer("axis", 0), len(x.shape))
    sizes = node.int_list(builder, 1, "the sizes") if node.has_input(1) else node.ints("split")
    if sizes is None:
        extent, parts = x.shape[axis], node.integer("num_outputs", len(node.outputs))
        # The last part is the smaller one if they do not divide.
        piece = -(-extent // parts)
        sizes = tuple(min(piece, extent - i * piece) for i in range(parts))
    if sum(sizes) != x.shape[axis]:
        raise node.unsupported(f"parts of {list(sizes)} elements are not the {x.shape[axis]} of axis {axis}")
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    return [cut(builder, x.name, axis, at, at + size, 1, node.name) for at, size in zip(offsets, sizes, strict=True)]


def _pad(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    rank, mode = len(shape), node.text("mode", "constant")
    pads = node.int_list(builder, 1, "the pads")
    axes = node.int_list(builder, 3, "the axes") if node.has_input(3) else tuple(range(rank))
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[node.axis(axis, rank)], after[node.axis(axis, rank)] = pads[i], pads[len(axes) + i]
    if mode not in _PAD_MODES:
        raise node.unsupported(f"mode {mode!r} is none of {', '.join(_PAD_MODES)}")
    for axis, extent in enumerate(shape):
        low, high = (before[axis], after[axis]) if mode != "constant" else (min(before[axis], 0), min(after[axis], 0))
        # Negative pads crop: done first, so that the operator only ever adds.
        if mode == "constant":
            x = slice_axis(builder, x, axis, -low, max(extent + high, 0), 1, node.name)
        elif low != 0 or high != 0:
            x = take(builder, x, axis, _padded_indices(extent, low, high, mode), node.name)
    outer = [tuple(max(0, pad) for pad in pads) for pads in (before, after)]
    if mode != "constant" or not any((*outer[0], *outer[1])):
        return [x]
    if not node.has_input(2):
        return [write("pad", x, pads_before=outer[0], pads_after=outer[1], value=0.0)]
    fill = builder.array(node.inputs[2])
    if fill is not None and is_float(fill.dtype.name):
        return [write("pad", x, pads_before=outer[0], pads_after=outer[1], value=float(fill.item()))]
    border: dict[str, Attribute] = {"pads_before": outer[0], "pads_after": outer[1], "value": 0.0}
    # The operator's pad value is a constant float, which cannot hold every int64: others are inserted by a mask.
    inside = builder.emit("pad", [builder.filled(True, "bool", builder.value(x).shape)], border)
    wide = write("pad", x, pads_before=outer[0], pads_after=outer[1], value=0.0)
    value = builder.emit("reshape", [node.inputs[2]], {"shape": ()})
    return [write("where", inside, wide, value)]


_PAD_MODES = ("constant", "edge", "reflect", "wrap")


def _padded_indices(extent: int, low: int, high: int, mode: str) -> Sequence[int]:
    """The index in the axis of each element of the padded axis."""
    indices = np.arange(-low, extent + high)
    if mode == "reflect" and extent > 1:
        # A triangle wave: reflections repeat if the pad is wider than the axis.
        indices = np.abs((indices + extent - 1) % (2 * extent - 2) - extent + 1)
    elif mode == "wrap":
        indices = indices % extent
    return [int(index) for index in np.clip(indices, 0, extent - 1)]


def _range(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    start, limit, delta = (
        node.array(builder, i, what) for i, what in enumerate(("the start", "the limit", "the step"))
    )
    dtype = node.operand(builder, 0).dtype
    if dtype == "int64":
        begin, end, step = (whole(array.item()) for array in (start, limit, delta))
        # ceil((end - begin) / step) in integers: no float rounds long ranges.
        count = -((begin - end) // step)
        attrs = {"start": begin, "count": count if count > 0 else 0, "step": step}
        return [builder.emit("arange", [], attrs, name=node.name, output=node.outputs[0])]
    count = max(0, int(np.ceil((float(limit.item()) - float(start.item())) / float(delta.item()))))
    wide = "float64" if is_float(dtype) else "int64"
    # Start plus multiples in the wide type, and one rounding: repeated addition would accumulate errors.
    values = start.astype(wide).item() + np.arange(count) * delta.astype(wide).item()
    return [builder.constant(values.astype(start.dtype), node.outputs[0])]


def _tile(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape, repeats = builder.value(x).shape, node.int_list(builder, 1, "the repeats")
    split = tuple(n for extent in shape for n in (1, extent))
    wide = tuple(n for pair in zip(repeats, shape, strict=True) for n in pair)
    spread = write("broadcast_to", write("reshape", x, shape=split), shape=wide)
    return [write("reshape", spread, shape=tuple(n * times for n, times in zip(shape, repeats, strict=True)))]


def _eye_like(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    dtype = helper.tensor_dtype_to_np_dtype(node.integer("dtype", 1)) if "dtype" in node.attributes else x.dtype
    return [builder.constant(np.eye(x.shape[0], x.shape[1], node.integer("k", 0)).astype(dtype), node.outputs[0])]


def _depth_to_space(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    n, c, h, w = builder.value(x).shape
    b = node.integer("blocksize", 1)
    deep = node.text("mode", "DCR") == "DCR"
    # DCR takes the block's index from the slow part of the channels, CRD from the fast one.
    x = write("reshape", x, shape=(n, b, b, c // b**2, h, w) if deep else (n, c // b**2, b, b, h, w))
    x = write("transpose", x, perm=(0, 3, 4, 1, 5, 2) if deep else (0, 1, 4, 2, 5, 3))
    return [write("reshape", x, shape=(n, c // b**2, h * b, w * b))]


def _space_to_depth(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    n, c, h, w = builder.value(x).shape
    b = node.integer("blocksize", 1)
    x = write("reshape", x, shape=(n, c, h // b, b, w // b, b))
    deep = node.text("mode", "DCR") == "DCR"
    x = write("transpose", x, perm=(0, 3, 5, 1, 2, 4) if deep else (0, 1, 3, 5, 2, 4))
    return [write("reshape", x, shape=(n, c * b**2, h // b, w // b))]


def _compress(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    indices = [int(index) for index in np.flatnonzero(node.array(builder, 1, "the condition"))]
    if "axis" not in node.attributes:
        return [take(builder, write("reshape", x, shape=(builder.value(x).size,)), 0, indices, node.name)]
    return [take(builder, x, node.axis(node.integer("axis", 0), len(builder.value(x).shape)), indices, node.name)]


def _expand(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    target = broadcast_shapes(shape, node.int_list(builder, 1, "the shape"))
    if target is None:
        raise node.unsupported(f"shape {list(shape)} does not broadcast")
    return [x if target == shape else write("broadcast_to", x, shape=target)]


CONVERTERS: Mapping[str, Converter] = {
    "Compress": _compress,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "EyeLike": _eye_like,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
