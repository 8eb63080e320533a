"""In: an ONNX node that moves elements. Out: our operators. Always: shapes, axes and indices are constants."""

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.frontend.onnx.attributes import OnnxNode
from compiler.frontend.onnx.elementwise import Converter, formula_of
from compiler.graph.builder import GraphBuilder
from compiler.graph.infer import broadcast_shapes
from compiler.graph.ir import Array

_FAR = 2**62
_MOST_PIECES = 64


def _identity(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return [node.operand(builder, 0).name]


def _dropout(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    if node.has_input(2) and bool(node.array(builder, 2, "training_mode").item()):
        raise node.unsupported("training mode; export the model for inference")
    x = node.operand(builder, 0)
    mask = [builder.constant(np.ones(x.shape, bool), node.outputs[1])] if any(node.outputs[1:]) else []
    return [x.name, *mask]


def _constant(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return [builder.constant(_constant_array(node), node.outputs[0])]


def _constant_array(node: OnnxNode) -> Array:
    tensor = node.tensor("value")
    if tensor is not None:
        return tensor
    for key, dtype in (("value_float", "float32"), ("value_floats", "float32"), ("value_int", "int64")):
        if key in node.attributes:
            return np.asarray(node.attributes[key], dtype=dtype)
    if "value_ints" in node.attributes:
        return np.asarray(node.attributes["value_ints"], dtype="int64")
    raise node.unsupported("only dense numbers are supported")


def _constant_of_shape(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    tensor = node.tensor("value")
    fill = np.zeros(1, "float32") if tensor is None else tensor
    return [builder.constant(np.full(node.int_list(builder, 0, "the shape"), fill.item(), fill.dtype), node.outputs[0])]


def _shape(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shape = node.operand(builder, 0).shape
    start, end = node.integer("start", 0), node.integer("end", _FAR)
    return [builder.constant(np.asarray(shape[start:end], "int64"), node.outputs[0])]


def _size(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return [builder.constant(np.asarray(node.operand(builder, 0).size, "int64"), node.outputs[0])]


def _reshaped(builder: GraphBuilder, node: OnnxNode, shape: tuple[int, ...]) -> Sequence[str]:
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
        rest = 1
        for extent in wanted:
            rest *= extent if extent != -1 else 1
        wanted[wanted.index(-1)] = x.size // rest if rest else 0
    return _reshaped(builder, node, tuple(wanted))


def _flatten(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    axis = node.integer("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    rows = 1
    for extent in x.shape[:axis]:
        rows *= extent
    return _reshaped(builder, node, (rows, x.size // rows if rows else 0))


def _squeeze(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shape = node.operand(builder, 0).shape
    axes = node.axes(builder, 1, 13)
    gone = {i for i, n in enumerate(shape) if n == 1} if axes is None else {node.axis(a, len(shape)) for a in axes}
    if any(shape[axis] != 1 for axis in gone):
        raise node.unsupported(f"cannot squeeze axes {sorted(gone)} of shape {list(shape)}")
    return _reshaped(builder, node, tuple(n for i, n in enumerate(shape) if i not in gone))


def _unsqueeze(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shape = list(node.operand(builder, 0).shape)
    axes = node.axes(builder, 1, 13) or ()
    rank = len(shape) + len(axes)
    for axis in sorted(node.axis(axis, rank) for axis in axes):
        shape.insert(axis, 1)
    return _reshaped(builder, node, tuple(shape))


def _transpose(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    rank = len(builder.value(x).shape)
    return [write("transpose", x, perm=node.ints("perm") or tuple(reversed(range(rank))))]


def _concat(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    shapes = [builder.value(name).shape for name in node.inputs]
    axis = node.axis(node.integer("axis", 0), len(shapes[0]))
    filled = [name for name, shape in zip(node.inputs, shapes, strict=True) if shape[axis] > 0]
    if len(filled) <= 1:
        return [(filled or node.inputs)[0]]
    return [builder.emit("concat", filled, {"axis": axis}, name=node.name, output=node.outputs[0])]


def _cut(builder: GraphBuilder, node: OnnxNode, axis: int, start: int, stop: int, step: int = 1) -> str:
    """Elements start, start + step, ... of one axis."""
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return write("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def _slice(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    first, last = (node.int_list(builder, i, what) for i, what in ((1, "the starts"), (2, "the ends")))
    axes = node.int_list(builder, 3, "the axes") if node.has_input(3) else tuple(range(len(first)))
    jumps = node.int_list(builder, 4, "the steps") if node.has_input(4) else (1,) * len(first)
    data = builder.array(x)
    if data is not None:
        cuts = [slice(None)] * len(shape)
        for axis, *bound in zip(axes, first, last, jumps, strict=True):
            cuts[node.axis(axis, len(shape))] = slice(*bound)
        return [builder.constant(data[tuple(cuts)], node.outputs[0])]
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, start, stop, step in zip(axes, first, last, jumps, strict=True):
        if step < 1:
            raise node.unsupported("negative steps are not supported")
        at = node.axis(axis, len(shape))
        starts[at], stops[at], steps[at] = (*slice(start, stop).indices(shape[at])[:2], step)
        stops[at] = max(stops[at], starts[at])
    return [write("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))]


def _split(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    axis = node.axis(node.integer("axis", 0), len(x.shape))
    sizes = node.int_list(builder, 1, "the sizes") if node.has_input(1) else node.ints("split")
    if sizes is None:
        extent, parts = x.shape[axis], node.integer("num_outputs", len(node.outputs))
        piece = -(-extent // parts)
        sizes = tuple(min(piece, extent - i * piece) for i in range(parts))
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    return [_cut(builder, node, axis, at, at + size) for at, size in zip(offsets, sizes, strict=True)]


def _gather(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    axis = node.axis(node.integer("axis", 0), len(shape))
    indices = node.array(builder, 1, "the indices")
    data = builder.array(x)
    if data is not None:
        return [builder.constant(np.take(data, indices.astype("int64"), axis=axis), node.outputs[0])]
    places = [int(place) % shape[axis] for place in indices.ravel()]
    step = places[1] - places[0] if len(places) > 1 else 1
    if places and step > 0 and places == list(range(places[0], places[-1] + 1, step)):
        x = _cut(builder, node, axis, places[0], places[-1] + 1, step)
    elif 0 < len(places) <= _MOST_PIECES:
        x = builder.emit("concat", [_cut(builder, node, axis, p, p + 1) for p in places], {"axis": axis})
    else:
        raise node.unsupported(f"{len(places)} indices without a pattern")
    result = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    return [write("reshape", x, shape=result) if result != builder.value(x).shape else x]


def _pad(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    rank = len(builder.value(x).shape)
    if node.text("mode", "constant") != "constant":
        raise node.unsupported(f"mode {node.text('mode', '')!r}; only 'constant' is supported")
    pads = node.int_list(builder, 1, "the pads")
    axes = node.int_list(builder, 3, "the axes") if node.has_input(3) else tuple(range(rank))
    value = float(node.array(builder, 2, "the value").item()) if node.has_input(2) else 0.0
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[node.axis(axis, rank)], after[node.axis(axis, rank)] = pads[i], pads[len(axes) + i]
    if min(pads, default=0) < 0:
        raise node.unsupported("negative pads are not supported")
    if not any(pads):
        return [x]
    return [write("pad", x, pads_before=tuple(before), pads_after=tuple(after), value=value)]


def _expand(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    target = broadcast_shapes(shape, node.int_list(builder, 1, "the shape"))
    if target is None:
        raise node.unsupported(f"shape {list(shape)} does not broadcast")
    return [x if target == shape else write("broadcast_to", x, shape=target)]


def _resize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """Nearest-neighbour enlargement by whole factors: every element is repeated."""
    x = node.operand(builder, 0)
    factors = _whole_factors(builder, node, x.shape)
    mode, how = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
    rounding = node.text("nearest_mode", "round_prefer_floor")
    plain = (how, rounding) == ("asymmetric", "floor") or (how == "half_pixel" and rounding.startswith("round"))
    if mode != "nearest" or factors is None or not plain:
        raise node.unsupported("only nearest-neighbour enlargement by whole factors is supported")
    write, name = formula_of(builder, node)
    split = tuple(n for extent in x.shape for n in (extent, 1))
    wide = tuple(n for pair in zip(x.shape, factors, strict=True) for n in pair)
    name = write("broadcast_to", write("reshape", name, shape=split), shape=wide)
    return [write("reshape", name, shape=tuple(n * f for n, f in zip(x.shape, factors, strict=True)))]


def _whole_factors(builder: GraphBuilder, node: OnnxNode, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if node.has_input(3):
        sizes = node.int_list(builder, 3, "the sizes")
        ratios = [size / extent for size, extent in zip(sizes, shape, strict=False)]
    else:
        ratios = [float(scale) for scale in node.array(builder, 2, "the scales").astype("float64").ravel()]
    if len(ratios) != len(shape) or any(ratio < 1 or ratio != int(ratio) for ratio in ratios):
        return None
    return tuple(int(ratio) for ratio in ratios)


CONVERTERS: Mapping[str, Converter] = {
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": _identity,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
