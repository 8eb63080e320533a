"""In: an ONNX node that follows or finds indices. Out: our operators.

Always: indices may be constants or computed; those that are constants and form a pattern become slices.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from retune.compiler.frontend.onnx.attributes import OnnxNode
from retune.compiler.frontend.onnx.elementwise import Converter, formula_of
from retune.compiler.graph.builder import GraphBuilder


def taken(builder: GraphBuilder, x: str, axis: int, places: Sequence[int], name: str = "") -> str:
    """The elements of `x` at constant, non-negative places along an axis: a slice where they are evenly spaced."""
    shape = builder.value(x).shape
    places = list(places)
    if places == list(range(shape[axis])):
        return x
    step = places[1] - places[0] if len(places) > 1 else 1
    if places and step > 0 and places == list(range(places[0], places[-1] + 1, step)):
        starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = places[0], places[-1] + 1, step
        attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
        return builder.emit("slice", [x], attrs, name=name)
    indices = builder.constant(np.asarray(places, "int64"), "places")
    return builder.emit("gather", [x, indices], {"axis": axis}, name=name)


def _gather(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    axis = node.axis(node.integer("axis", 0), len(shape))
    indices = node.operand(builder, 1)
    known = builder.array(indices.name)
    if known is None or builder.array(x) is not None:
        return [write("gather", x, indices.name, axis=axis)]
    if known.size and not -shape[axis] <= known.min() <= known.max() < shape[axis]:
        raise node.unsupported(f"an index is outside of axis {axis}, which has {shape[axis]} elements")
    result = taken(builder, x, axis, [int(place) % shape[axis] for place in known.ravel()], node.name)
    full = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    return [write("reshape", result, shape=full) if full != builder.value(result).shape else result]


def _gather_elements(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    axis = node.axis(node.integer("axis", 0), len(builder.value(x).shape))
    return [write("gather_elements", x, node.operand(builder, 1).name, axis=axis)]


def _gather_nd(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("gather_nd", x, node.operand(builder, 1).name, batch_dims=node.integer("batch_dims", 0))]


def _scatter_elements(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    axis = node.axis(node.integer("axis", 0), len(builder.value(x).shape))
    return [write("scatter_elements", *node.inputs[:3], axis=axis, reduction=node.text("reduction", "none"))]


def _scatter_nd(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, _ = formula_of(builder, node)
    return [write("scatter_nd", *node.inputs[:3], reduction=node.text("reduction", "none"))]


def _arg(op: str) -> Converter:
    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, x = formula_of(builder, node)
        shape = builder.value(x).shape
        axis, keepdims = node.axis(node.integer("axis", 0), len(shape)), bool(node.integer("keepdims", 1))
        if not node.integer("select_last_index", 0):
            return [write(op, x, axis=axis, keepdims=keepdims)]
        turned = taken(builder, x, axis, list(reversed(range(shape[axis]))))
        place = write(op, turned, axis=axis, keepdims=keepdims)
        last = builder.scalar(shape[axis] - 1, "int64")
        return [write("sub", last, place)]

    return convert


def _hardmax(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    if node.opset < 13:
        raise node.unsupported("its meaning before operator set 13; export the model again")
    axis = node.axis(node.integer("axis", -1), len(shape))
    column = [1] * len(shape)
    column[axis] = shape[axis]
    places = builder.constant(np.arange(shape[axis]).reshape(column), "places")
    hit = write("equal", write("arg_max", x, axis=axis, keepdims=True), places)
    return [write("cast", hit, dtype=builder.value(x).dtype)]


def _one_hot(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, indices = formula_of(builder, node)
    depth = int(node.array(builder, 1, "the depth").item())
    values = node.operand(builder, 2)
    shape = builder.value(indices).shape
    axis = node.axis(node.integer("axis", -1), len(shape) + 1)
    wide = write("cast", indices, dtype="int64")
    if builder.value(indices).dtype.startswith("float"):
        wide = write("cast", write("floor", indices), dtype="int64")
    where = write("reshape", wide, shape=(*shape[:axis], 1, *shape[axis:]))
    column = (depth, *(1 for _ in shape[axis:]))
    places = np.arange(depth).reshape(column)
    exact = write("equal", where, builder.constant(places, "places"))
    from_end = write("equal", where, builder.constant(places - depth, "places"))
    pair = [builder.emit("reshape", [taken(builder, values.name, 0, [i])], {"shape": ()}) for i in (0, 1)]
    return [write("where", write("bit_or", exact, from_end), pair[1], pair[0])]


def _trilu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    if len(shape) < 2:
        raise node.unsupported("needs a matrix")
    k = int(node.array(builder, 1, "the diagonal").item()) if node.has_input(1) else 0
    whole = np.ones(shape[-2:], bool)
    kept = np.triu(whole, k) if node.integer("upper", 1) else np.tril(whole, k)
    dtype = builder.value(x).dtype
    return [write("where", builder.constant(kept, "kept"), x, builder.scalar(0, dtype))]


def _scan_matrix(extent: int, exclusive: bool, reverse: bool) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Which element (row) takes part in which running total (column)."""
    rows, columns = np.ogrid[:extent, :extent]
    earlier = rows > columns if reverse else rows < columns
    return np.asarray(earlier if exclusive else earlier | (rows == columns))


def _cumulative(op: str, neutral: int) -> Converter:
    """Running sums and products: one reduction over all elements, of which those to come count as `neutral`."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, x = formula_of(builder, node)
        value = builder.value(x)
        axis = node.axis(int(node.array(builder, 1, "the axis").item()), len(value.shape))
        extent = value.shape[axis]
        counted = _scan_matrix(extent, bool(node.integer("exclusive", 0)), bool(node.integer("reverse", 0)))
        column = (extent, extent, *(1 for _ in value.shape[axis + 1 :]))
        spread = write("reshape", x, shape=(*value.shape[: axis + 1], 1, *value.shape[axis + 1 :]))
        terms = write("where", builder.constant(counted.reshape(column), "counted"), spread, neutral_of(value.dtype))
        return [write(op, terms, axes=(axis,), keepdims=False)]

    def neutral_of(dtype: str) -> float:
        return float(neutral) if dtype.startswith(("float", "bfloat")) else neutral

    return convert


def _top_k(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    axis = node.axis(node.integer("axis", -1), len(builder.value(x).shape))
    k = int(node.array(builder, 1, "k").item())
    places = write("top_k", x, axis=axis, k=k, largest=bool(node.integer("largest", 1)))
    return [write("gather_elements", x, places, axis=axis), places]


def _reverse_sequence(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    lengths = node.operand(builder, 1)
    line, row = [1] * len(shape), [1] * len(shape)
    line[time], row[batch] = shape[time], shape[batch]
    places = builder.constant(np.arange(shape[time]).reshape(line), "places")
    ends = builder.emit("reshape", [lengths.name], {"shape": tuple(row)})
    turned = builder.emit("sub", [builder.emit("sub", [ends, places]), builder.scalar(1, "int64")])
    chosen = builder.emit("where", [builder.emit("less", [places, ends]), turned, places])
    return [write("gather_elements", x, builder.emit("broadcast_to", [chosen], {"shape": shape}), axis=time)]


def _tensor_scatter(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """A cache with each sequence's update written from its own place on, around the end where it is circular."""
    write, past = formula_of(builder, node)
    shape, update = builder.value(past).shape, node.operand(builder, 1)
    axis = node.axis(node.integer("axis", -2), len(shape))
    mode = node.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise node.unsupported(f"mode {mode!r} is neither linear nor circular")
    column = (1,) * axis + (shape[axis],) + (1,) * (len(shape) - axis - 1)
    places = builder.constant(np.arange(shape[axis]).reshape(column), "places")
    steps = places
    if node.has_input(2):
        start = builder.emit("cast", [node.inputs[2]], {"dtype": "int64"})
        start = builder.emit("reshape", [start], {"shape": (shape[0], *(1 for _ in shape[1:]))})
        steps = builder.emit("sub", [places, start])
    if mode == "circular":
        steps = builder.emit("mod", [steps, builder.scalar(shape[axis], "int64")])
    fresh = builder.emit("less", [steps, builder.scalar(update.shape[axis], "int64")])
    if mode == "linear":
        fresh = builder.emit("bit_and", [fresh, builder.emit("less", [builder.scalar(-1, "int64"), steps])])
    inside = builder.emit("maximum", [steps, builder.scalar(0, "int64")])
    read = builder.emit("broadcast_to", [inside], {"shape": shape})
    return [write("where", fresh, write("gather_elements", update.name, read, axis=axis), past)]


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": _arg("arg_max"),
    "ArgMin": _arg("arg_min"),
    "CumProd": _cumulative("reduce_prod", 1),
    "CumSum": _cumulative("reduce_sum", 0),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Hardmax": _hardmax,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
    "Trilu": _trilu,
}
