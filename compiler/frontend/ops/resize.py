"""Converter of ONNX Resize.

Along an axis every element of the result is a weighted sum of a few input elements, the same for all rows: a sparse
constant matrix. Axes with few terms are resampled together; an axis with many, as with antialiasing, is a product with
the whole matrix. If every row has a single 1 and the rows are evenly spaced, the elements are a slice. An axis of a
symbolic extent has tables in place of a matrix, which the network computes.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np

from retune.compiler.core.dtype import HALVES, is_float, sum_type
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, cast_to, formula_of
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.frontend.ops.resize_tables import (
    ROUNDINGS,
    Numbers,
    cubic_far,
    cubic_near,
    nearest_table,
    weighted_tables,
)
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array
from retune.compiler.ir.dims import Dim, same

Table = Array | tuple[str, ...]
"""The matrix (new, old) of an axis; or the names of its indices, or of its indices and weights (new, taps)."""

_LARGEST = 1 << 24
"""Most elements of the matrix that resizes an axis."""
_MOST_NUMERATOR = 1 << 8
"""Largest numerator of a factor whose products with extents of less than 65,536 are exact in float32."""
_MOST_TAPS = 8
"""Most operand elements per result element, over all axes resampled in one kernel: bilinear has 4, trilinear 8. Bicubic
has 16 and is resampled axis by axis, which multiplies less.
"""


def _resize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape, dtype = builder.value(x).shape, builder.value(x).dtype
    sizes, scales = _sizes(builder, node, shape)
    if 0 in shape:
        if any(size and not extent for extent, size in zip(shape, sizes, strict=True)):
            raise node.unsupported(f"makes {sizes} of {list(shape)}: nothing can be resized to something")
        return [builder.filled(0, dtype, sizes)]
    how = node.text("coordinate_transformation_mode", "half_pixel")
    matrices: dict[int, Table] = {}
    masks: dict[int, Array] = {}
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        if same(size, extent) and scales[axis] in (None, 1.0) and how != "tf_crop_and_resize":
            continue
        if isinstance(extent, Dim) or isinstance(size, Dim):
            matrices[axis] = _symbolic_table(builder, node, how, _Axis(axis, extent, size, scales[axis]))
            continue
        if size * extent > _LARGEST:
            raise node.unsupported(f"makes {size} of {extent} elements: the matrix for that has more than {_LARGEST}")
        resized = _Axis(axis, extent, size, scales[axis])
        origins = [_origin(builder, node, how, index, resized) for index in range(size)]
        rows = [_row(node, origin, extent, resized.scale) for origin in origins]
        matrices[axis] = np.array(rows).reshape(size, extent)
        masks[axis] = np.array([not 0 <= origin <= extent - 1 for origin in origins])
    # Axes may be resampled in turn: halves are not rounded between them.
    is_narrow = not is_float(dtype) or (dtype in HALVES and len(matrices) > 1)
    if is_narrow and not all(map(_moves_only, matrices.values())):
        x = _along_axes(builder, write("cast", x, dtype="float32"), matrices)
        x = write("cast", x, dtype=dtype)
    else:
        x = _along_axes(builder, x, matrices)
    for axis, outside in masks.items():
        if how == "tf_crop_and_resize" and outside.any():
            mask = builder.constant(outside.reshape(-1, *(1 for _ in shape[axis + 1 :])), "outside")
            x = write("where", mask, node.number("extrapolation_value", 0.0), x)
    return [x]


def _symbolic_table(builder: GraphBuilder, node: OnnxNode, how: str, resized: "_Axis") -> tuple[str, ...]:
    """The indices of an axis of a symbolic extent, and their weights unless elements are moved only."""
    _, extent, size, scale = resized
    mode = node.text("mode", "nearest")
    is_known = mode in ("nearest", "linear", "cubic") and how != "tf_crop_and_resize"
    # A result of one element has a rule of its own in these.
    is_single = how in ("align_corners", "pytorch_half_pixel") and size == 1
    if not is_known or is_single or node.integer("antialias", 0):
        raise node.unsupported(f"resizes the symbolic extent {extent} to {size} by {mode}, {how}, antialias or to 1")
    old, new = (Numbers.of_extent(builder, node, number) for number in (extent, size))
    index = Numbers.of_range(builder, node, (size,))
    ratio = new / old if scale is None else scale
    position = _origin(builder, node, how, index, _Axis(resized.number, old, new, ratio))
    if mode == "nearest":
        return (nearest_table(position, extent, _rounding(node)),)
    cubic = node.number("cubic_coeff_a", -0.75) if mode == "cubic" else None
    return weighted_tables(position, extent, cubic, excludes=bool(node.integer("exclude_outside", 0)))


def _moves_only(table: Table) -> bool:
    """Whether every element of the result is an element of the operand."""
    if isinstance(table, tuple):
        return len(table) == 1
    return bool(((table == 1).sum(axis=1) == 1).all() and ((table != 0).sum(axis=1) == 1).all())


def _along_axes(builder: GraphBuilder, x: str, tables: Mapping[int, Table]) -> str:
    """Apply each table along its axis."""
    together: dict[int, tuple[str, ...]] = {}
    taps = 1
    for axis, table in tables.items():
        if isinstance(table, tuple):
            names = table
            if len(names) == 1:
                x = builder.emit("gather", [x, *names], {"axis": axis})
                continue
        elif _moves_only(table) and (not is_float(builder.value(x).dtype) or _is_even(table.argmax(axis=1))):
            x = take(builder, x, axis, [int(index) for index in table.argmax(axis=1)])
            continue
        else:
            arrays = _taps(table)
            if arrays[0].shape[1] > _MOST_TAPS:
                x = _product(builder, x, axis, table)
                continue
            names = tuple(map(builder.constant, arrays, ("places", "weights")))
        own = builder.value(names[0]).shape[1]
        if taps * own > _MOST_TAPS:
            x, together, taps = _resample(builder, x, together), {}, 1
        together[axis], taps = names, taps * own
    return _resample(builder, x, together)


def _is_even(indices: Array) -> bool:
    """Whether the indices are evenly spaced and ascending, as for a slice."""
    steps = np.diff(indices)
    return bool(steps.size == 0 or (steps[0] > 0 and (steps == steps[0]).all()))


def _taps(matrix: Array) -> tuple[Array, Array]:
    """The indices and weights of the nonzero elements of each row, padded with the first index and zero."""
    taps = int((matrix != 0).sum(axis=1).max())
    # A stable sort by zero puts the nonzero elements in front, in order.
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
    weights = np.take_along_axis(matrix, order, axis=1)
    return np.where(weights != 0, order, order[:, :1]).astype("int32"), weights.astype("float32")


def _resample(builder: GraphBuilder, x: str, tables: Mapping[int, tuple[str, ...]]) -> str:
    operands = [name for axis in sorted(tables) for name in tables[axis]]
    return builder.emit("resample", [x, *operands], {"axes": tuple(sorted(tables))}) if tables else x


def _product(builder: GraphBuilder, x: str, axis: int, matrix: Array) -> str:
    shape, dtype = builder.value(x).shape, builder.value(x).dtype
    rank, wide = len(shape), sum_type(dtype)
    moved = (*(i for i in range(rank) if i != axis), axis)
    flat = builder.emit("transpose", [cast_to(builder, x, wide)], {"perm": moved})
    flat = builder.emit("reshape", [flat], {"shape": (builder.value(x).size // shape[axis], shape[axis])})
    weight = builder.constant(matrix.T.astype(wide), "weights")
    result = builder.emit("dense", [flat, weight])
    others = [extent for i, extent in enumerate(shape) if i != axis]
    result = builder.emit("reshape", [result], {"shape": (*others, matrix.shape[0])})
    back = tuple(int(axis_index) for axis_index in np.argsort(moved))
    return cast_to(builder, builder.emit("transpose", [result], {"perm": back}), dtype)


def _sizes(builder: GraphBuilder, node: OnnxNode, shape: tuple[int, ...]) -> tuple[list[int], list[float | None]]:
    """The result's extents and the scale of each axis; None where it is the ratio of symbolic extents."""
    rank = len(shape)
    axes = [node.axis(axis, rank) for axis in node.ints("axes") or range(rank)]
    sizes, scales = list(shape), list[float | None]([1.0] * rank)
    if node.has_input(3) and node.operand(builder, 3).size:
        wanted = node.int_list(builder, 3, "the sizes")
        ratios: list[float | None] = [_ratio(size, shape[axis]) for axis, size in zip(axes, wanted, strict=True)]
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            known = [ratio for ratio in ratios if ratio is not None]
            if len(known) < len(ratios):
                raise node.unsupported(f"resizes {list(shape)} to {list(wanted)} by the policy {policy}")
            ratio = min(known) if policy == "not_larger" else max(known)
            ratios = [ratio] * len(axes)
            # ONNX rounds half up here, where Python's `round` would round half to even.
            wanted = tuple(floor(ratio * shape[axis] + 0.5) for axis in axes)
        for axis, size, scale in zip(axes, wanted, ratios, strict=True):
            sizes[axis], scales[axis] = size, scale
        return sizes, scales
    operand = 1 if node.op_type == "Upsample" else 2
    factors = node.array(builder, operand, "the scales").ravel()
    if len(factors) != len(axes):
        raise node.unsupported(f"{len(factors)} scales are not those of {len(axes)} axes")
    for axis, factor in zip(axes, factors, strict=True):
        scales[axis] = float(factor)
        sizes[axis] = _extent_times(node, shape[axis], np.float32(factor))
    return sizes, scales


def _ratio(size: int, extent: int) -> float | None:
    if isinstance(size, Dim) or isinstance(extent, Dim):
        return None
    return size / extent if extent else 1.0


def _extent_times(node: OnnxNode, extent: int, factor: np.float32) -> int:
    """The extent times the factor, rounded down."""
    if not isinstance(extent, Dim):
        # ONNX's shape inference and ONNX Runtime multiply in float32: 10 * float32(2.3) is 23, in float64 just below.
        return floor(np.float32(extent) * factor)
    numerator, denominator = factor.as_integer_ratio()
    if numerator > _MOST_NUMERATOR:
        raise node.unsupported(f"multiplies the symbolic extent {extent} by {factor}, whose products float32 rounds")
    return extent * numerator // denominator


class _Axis(NamedTuple):
    """Axis `number` that is resized from `extent` to `size` elements."""

    number: int
    extent: Any
    size: Any
    scale: Any


def _origin(builder: GraphBuilder, node: OnnxNode, how: str, index: Any, resized: _Axis) -> Any:
    """The position in the operand of element `index` of the result along an axis; of `Numbers` if these are."""
    axis, extent, size, scale = resized
    if node.op_type == "Upsample" or how == "asymmetric":
        return index / scale
    if how == "align_corners":
        return 0.0 if size == 1 else index * (extent - 1) / (scale * extent - 1)
    # As in ONNX's reference; its text says 0, which most modes clip to the same element.
    if how == "pytorch_half_pixel" and size == 1:
        return -0.5
    if how == "tf_crop_and_resize":
        rank = len(node.operand(builder, 0).shape)
        axes = [node.axis(dim, rank) for dim in node.ints("axes") or range(rank)]
        if axis not in axes:
            return float(index)
        region = node.array(builder, 1, "the region").astype("float64").ravel()
        start, end = region[axes.index(axis)], region[len(axes) + axes.index(axis)]
        offset = (end - start) * (extent - 1) / 2 if size == 1 else index * (end - start) * (extent - 1) / (size - 1)
        return float(start * (extent - 1) + offset)
    if how == "half_pixel_symmetric":
        shift = extent / 2 * (1 - size / (scale * extent))
        return shift + (index + 0.5) / scale - 0.5
    if how not in ("half_pixel", "pytorch_half_pixel"):
        raise node.unsupported(f"coordinate_transformation_mode {how!r} is unknown")
    return (index + 0.5) / scale - 0.5


def _row(node: OnnxNode, position: float, extent: int, scale: float) -> Array:
    """The weight of each element of an axis in the element at `position`."""
    row = np.zeros(extent)
    mode = node.text("mode", "nearest")
    if mode == "nearest":
        # ONNX Runtime computes positions in float32; in float64 a position such as 1.0000000002 would round to another
        # side.
        position = float(np.float32(position))
        function, shift = ROUNDINGS[_rounding(node)]
        rounded = (floor if function == "floor" else ceil)(position + shift)
        row[min(max(rounded, 0), extent - 1)] = 1.0
        return row
    if mode not in ("linear", "cubic"):
        raise node.unsupported(f"mode {mode!r} is none of nearest, linear, cubic")
    spread = 1.0 if mode == "linear" else 2.0
    # Antialiasing stretches the kernel by the factor of a reduction, so that every element of the operand counts.
    shrink = min(scale, 1.0) if node.integer("antialias", 0) else 1.0
    reach = ceil(spread / shrink)
    sharpness = node.number("cubic_coeff_a", -0.75)
    first = floor(position) - reach
    indices = np.arange(first, first + 2 * reach + 2)
    weights = np.array([_kernel(mode, (index - position) * shrink, sharpness) for index in indices])
    if node.integer("exclude_outside", 0):
        weights = np.where((indices >= 0) & (indices < extent), weights, 0.0)
    # Dropped weights, or a stretched kernel, do not sum to 1.
    weights = weights / weights.sum()
    # Unbuffered addition: several taps may be clipped to the same edge element.
    np.add.at(row, np.clip(indices, 0, extent - 1), weights)
    return row


def _rounding(node: OnnxNode) -> str:
    return "floor" if node.op_type == "Upsample" else node.text("nearest_mode", "round_prefer_floor")


def _kernel(mode: str, distance: float, a: float) -> float:
    """The weight of an element at a distance; `a` shapes the cubic kernel."""
    d = abs(distance)
    if mode == "linear":
        return max(0.0, 1.0 - d)
    if d <= 1:
        return cubic_near(d, a)
    return cubic_far(d, a) if d < 2 else 0.0


CONVERTERS: Mapping[str, Converter] = {"Resize": _resize, "Upsample": _resize}
