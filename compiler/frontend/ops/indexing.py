"""Converters of ONNX operators that use or compute indices: gather, scatter, top-k, cumulative sums and others.

Indices are constants or computed values. Constant indices that are evenly spaced become slices. Other converters use
`take`, `slice_axis` and `cut`, which emit an operator and return the name of its result.
"""

from collections.abc import Mapping, Sequence

from retune.compiler.core.dtype import sum_type
from retune.compiler.core.errors import DefinitionError
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, formula_of
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.ir.dims import Dim, estimate, integers, may_be_positive, same, whole


def take(builder: GraphBuilder, x: str, axis: int, indices: Sequence[int], name: str = "") -> str:
    """The elements of `x` at constant, non-negative indices along an axis: a slice if they are evenly spaced."""
    indices = list(indices)
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    # A slice is one strided read that fuses with its readers; a gather needs a table and has no vector load.
    if indices and step > 0 and indices == [indices[0] + step * number for number in range(len(indices))]:
        return cut(builder, x, axis, indices[0], indices[-1] + 1, step, name)
    table = builder.constant(integers(indices), "places")
    return builder.emit("gather", [x, table], {"axis": axis}, name=name)


def slice_axis(builder: GraphBuilder, x: str, axis: int, start: int, stop: int, step: int, name: str = "") -> str:
    """The elements `x[start:stop:step]` along an axis, by Python's rules, for numbers or symbolic dimensions."""
    shape = builder.value(x).shape
    extent = shape[axis]
    if not any(isinstance(number, Dim) for number in (extent, start, stop, step)):
        return take(builder, x, axis, range(extent)[start:stop:step], name)
    if isinstance(step, Dim) or step <= 0:
        raise DefinitionError(f"a slice of {extent} elements by {step}")
    first, last = (_clamp(number, extent) for number in (start, stop))
    if first > last or same(first, last):
        return take(builder, x, axis, (), name)
    if step > 1:
        # The end is right after the last element, so that equal slices have one form.
        step = step if last - first > step else 1
        last = first + (last - first - 1) // step * step + 1 if step > 1 else first + 1
    return cut(builder, x, axis, first, last, step, name)


def cut(builder: GraphBuilder, x: str, axis: int, start: int, stop: int, step: int = 1, name: str = "") -> str:
    """A slice of `x` along an axis, with bounds inside it."""
    shape = builder.value(x).shape
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], stops[axis], steps[axis] = start, stop, step
    attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
    return builder.emit("slice", [x], attrs, name=name)


def _clamp(number: int, extent: int) -> int:
    """A bound of a slice, counted from the front and within the extent."""
    # Python's `slice.indices`, which takes no symbolic dimensions.
    number = number + extent if number < 0 else number
    # Not for the ends themselves: a symbolic number needs no guard there.
    if number < 0:
        return 0
    return extent if number > extent else number


def _gather(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    axis = node.axis(node.integer("axis", 0), len(shape))
    indices = node.operand(builder, 1)
    known = None if builder.is_constant(x) else builder.array(indices.name)
    if known is None:
        return [write("gather", x, indices.name, axis=axis)]
    if known.size and not -shape[axis] <= known.min() <= known.max() < shape[axis]:
        raise node.unsupported(f"an index is outside of axis {axis}, which has {shape[axis]} elements")
    result = take(
        builder, x, axis, [whole(index) + (shape[axis] if index < 0 else 0) for index in known.flat], node.name
    )
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
    if node.operand(builder, 2).size == 0:
        return [x]
    return [write("scatter_elements", *node.inputs[:3], axis=axis, reduction=node.text("reduction", "none"))]


def _scatter_nd(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    if node.operand(builder, 2).size == 0:
        return [x]
    return [write("scatter_nd", *node.inputs[:3], reduction=node.text("reduction", "none"))]


def _arg(op: str) -> Converter:
    """A converter to the operator `op`, which is `arg_max` or `arg_min`."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, x = formula_of(builder, node)
        shape = builder.value(x).shape
        axis, keepdims = node.axis(node.integer("axis", 0), len(shape)), bool(node.integer("keepdims", 1))
        if not node.integer("select_last_index", 0):
            return [write(op, x, axis=axis, keepdims=keepdims)]
        # The last of equal elements is the first of the axis backwards.
        backwards = builder.arange(shape[axis], start=shape[axis] - 1, step=-1)
        reversed_x = builder.emit("gather", [x, backwards], {"axis": axis})
        index = write(op, reversed_x, axis=axis, keepdims=keepdims)
        last = builder.scalar(shape[axis] - 1, "int64")
        return [write("sub", last, index)]

    return convert


def _one_hot(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, indices = formula_of(builder, node)
    depth = whole(node.array(builder, 1, "the depth").item())
    values = node.operand(builder, 2)
    shape = builder.value(indices).shape
    axis = node.axis(node.integer("axis", -1), len(shape) + 1)
    wide = write("cast", indices, dtype="int64")
    if builder.value(indices).dtype.startswith("float"):
        wide = write("cast", write("floor", indices), dtype="int64")
    where = write("reshape", wide, shape=(*shape[:axis], 1, *shape[axis:]))
    column = (depth, *(1 for _ in shape[axis:]))
    exact = write("equal", where, builder.arange(depth, column))
    # Negative indices count from the end; indices outside of both ranges leave a row of the off value, as in ONNX.
    from_end = write("equal", where, builder.arange(depth, column, start=-depth))
    pair = [builder.emit("reshape", [take(builder, values.name, 0, [i])], {"shape": ()}) for i in (0, 1)]
    return [write("where", write("bit_or", exact, from_end), pair[1], pair[0])]


def _trilu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    if len(shape) < 2:
        raise node.unsupported("needs a matrix")
    k = whole(node.array(builder, 1, "the diagonal").item()) if node.has_input(1) else 0
    rows, columns = builder.arange(shape[-2], (shape[-2], 1), start=k), builder.arange(shape[-1])
    order = (rows, columns) if node.integer("upper", 1) else (columns, rows)
    kept = builder.emit("less_equal", order, output="kept")
    return [write("where", kept, x, builder.scalar(0, builder.value(x).dtype))]


_BLOCK = 16
"""Block length for running totals: longer axes are split into blocks."""


def _cumulative(op: str, join: str, neutral: int) -> Converter:
    """A converter of running totals: `op` reduces an axis, `join` combines two totals, `neutral` changes no total."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, x = formula_of(builder, node)
        dtype, rank = builder.value(x).dtype, len(builder.value(x).shape)
        axis = node.axis(whole(node.array(builder, 1, "the axis").item()), rank)
        wide = sum_type(dtype)
        x = x if wide == dtype else write("cast", x, dtype=wide)
        exclusive, reverse = (bool(node.integer(key, 0)) for key in ("exclusive", "reverse"))
        total = running(builder, x, axis, exclusive, reverse)
        return [total if wide == dtype else write("cast", total, dtype=dtype)]

    def running(builder: GraphBuilder, x: str, axis: int, exclusive: bool, reverse: bool) -> str:
        """Totals within blocks, plus running totals of the blocks' sums: n terms per level, not n^2."""
        value = builder.value(x)
        before, extent, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
        if estimate(extent) <= 2 * _BLOCK:
            return triangle(builder, x, axis, exclusive, reverse)
        blocks = -(-extent // _BLOCK)
        rest = blocks * _BLOCK - extent
        if may_be_positive(rest):
            missing = builder.filled(neutral, value.dtype, (*before, rest, *after))
            x = builder.emit("concat", [x, missing], {"axis": axis})
        x = builder.emit("reshape", [x], {"shape": (*before, blocks, _BLOCK, *after)})
        inner = triangle(builder, x, axis + 1, exclusive, reverse)
        totals = running(builder, builder.emit(op, [x], {"axes": (axis + 1,), "keepdims": False}), axis, True, reverse)
        totals = builder.emit("reshape", [totals], {"shape": (*before, blocks, 1, *after)})
        joined = builder.emit(join, [inner, totals])
        joined = builder.emit("reshape", [joined], {"shape": (*before, blocks * _BLOCK, *after)})
        return cut(builder, joined, axis, 0, extent) if may_be_positive(rest) else joined

    def triangle(builder: GraphBuilder, x: str, axis: int, exclusive: bool, reverse: bool) -> str:
        """One reduction over all elements, where later elements count as `neutral`: it vectorizes."""
        value = builder.value(x)
        before, extent, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
        rows, columns = (builder.arange(extent, shape) for shape in ((extent, 1), (extent,)))
        order = (columns, rows) if reverse else (rows, columns)
        counted = builder.emit("less" if exclusive else "less_equal", order, output="counted")
        counted = builder.emit("reshape", [counted], {"shape": (extent, extent, *(1 for _ in after))})
        spread = builder.emit("reshape", [x], {"shape": (*before, extent, 1, *after)})
        terms = builder.emit("where", [counted, spread, builder.scalar(neutral, value.dtype)])
        return builder.emit(op, [terms], {"axes": (axis,), "keepdims": False})

    return convert


def _top_k(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    axis = node.axis(node.integer("axis", -1), len(builder.value(x).shape))
    k = whole(node.array(builder, 1, "k").item())
    indices = write("top_k", x, axis=axis, k=k, largest=bool(node.integer("largest", 1)))
    return [write("gather_elements", x, indices, axis=axis), indices]


def _reverse_sequence(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    lengths = node.operand(builder, 1)
    time_shape, batch_shape = [1] * len(shape), [1] * len(shape)
    time_shape[time], batch_shape[batch] = shape[time], shape[batch]
    positions = builder.arange(shape[time], time_shape)
    ends = builder.emit("reshape", [lengths.name], {"shape": tuple(batch_shape)})
    mirrored = builder.emit("sub", [builder.emit("sub", [ends, positions]), builder.scalar(1, "int64")])
    chosen = builder.emit("where", [builder.emit("less", [positions, ends]), mirrored, positions])
    return [write("gather_elements", x, builder.emit("broadcast_to", [chosen], {"shape": shape}), axis=time)]


def _tensor_scatter(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """A cache with each sequence's update written at its own start, wrapping around if circular."""
    write, past = formula_of(builder, node)
    shape, update = builder.value(past).shape, node.operand(builder, 1)
    axis = node.axis(node.integer("axis", -2), len(shape))
    mode = node.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise node.unsupported(f"mode {mode!r} is neither linear nor circular")
    if update.size == 0:
        return [past]
    column = (1,) * axis + (shape[axis],) + (1,) * (len(shape) - axis - 1)
    positions = builder.arange(shape[axis], column)
    steps = positions
    if node.has_input(2):
        start = builder.emit("cast", [node.inputs[2]], {"dtype": "int64"})
        start = builder.emit("reshape", [start], {"shape": (shape[0], *(1 for _ in shape[1:]))})
        steps = builder.emit("sub", [positions, start])
    # `mod` has the sign of its divisor: positions before the start wrap to the end of the ring.
    if mode == "circular":
        steps = builder.emit("mod", [steps, builder.scalar(shape[axis], "int64")])
    fresh = builder.emit("less", [steps, builder.scalar(update.shape[axis], "int64")])
    if mode == "linear":
        fresh = builder.emit("bit_and", [fresh, builder.emit("less", [builder.scalar(-1, "int64"), steps])])
    # Unwritten positions read some valid element, which `where` then drops.
    inside = builder.emit("maximum", [steps, builder.scalar(0, "int64")])
    read = builder.emit("broadcast_to", [inside], {"shape": shape})
    return [write("where", fresh, write("gather_elements", update.name, read, axis=axis), past)]


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": _arg("arg_max"),
    "ArgMin": _arg("arg_min"),
    "CumProd": _cumulative("reduce_prod", "mul", 1),
    "CumSum": _cumulative("reduce_sum", "add", 0),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
    "Trilu": _trilu,
}
