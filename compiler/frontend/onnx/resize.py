"""Converter of ONNX Resize, one axis at a time, each as a gather or as a product with a constant matrix.

Along an axis every element of the result is a weighted sum of a few input elements, the same for all rows: a constant
matrix. If every row of that matrix has a single 1, the elements are gathered instead.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor

import numpy as np

from retune.compiler.frontend.onnx.attributes import OnnxNode
from retune.compiler.frontend.onnx.elementwise import Converter, formula_of
from retune.compiler.frontend.onnx.indexing import taken
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array

_ROUNDINGS: Mapping[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda x: ceil(x - 0.5),
    "round_prefer_ceil": lambda x: floor(x + 0.5),
    "floor": floor,
    "ceil": ceil,
}

_LARGEST = 1 << 24
"""Elements of the matrix that resizes an axis."""


def _resize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    sizes, scales = _sizes(builder, node, shape)
    how = node.text("coordinate_transformation_mode", "half_pixel")
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        if size == extent and scales[axis] == 1.0 and how != "tf_crop_and_resize":
            continue
        if size * extent > _LARGEST:
            raise node.unsupported(f"makes {size} of {extent} elements: the matrix for that has more than {_LARGEST}")
        places = [_origin(builder, node, how, place, axis, extent, size, scales[axis]) for place in range(size)]
        matrix = np.stack([_row(node, place, extent, scales[axis]) for place in places])
        x = _along(builder, x, axis, matrix)
        outside = np.array([not 0 <= place <= extent - 1 for place in places])
        if how == "tf_crop_and_resize" and outside.any():
            mask = builder.constant(outside.reshape(-1, *(1 for _ in shape[axis + 1 :])), "outside")
            x = write("where", mask, node.number("extrapolation_value", 0.0), x)
    return [x]


def _along(builder: GraphBuilder, x: str, axis: int, matrix: Array) -> str:
    """The matrix, (new, old), applied along an axis."""
    shape, dtype = builder.value(x).shape, builder.value(x).dtype
    # Nearest neighbor: a gather moves bytes, a product would multiply by zeros.
    if ((matrix == 1).sum(axis=1) == 1).all() and ((matrix != 0).sum(axis=1) == 1).all():
        return taken(builder, x, axis, [int(place) for place in matrix.argmax(axis=1)])
    rank = len(shape)
    moved = (*(i for i in range(rank) if i != axis), axis)
    flat = builder.emit("transpose", [x], {"perm": moved})
    flat = builder.emit("reshape", [flat], {"shape": (builder.value(x).size // shape[axis], shape[axis])})
    weight = builder.constant(matrix.T.astype(dtype), "weights")
    result = builder.emit("dense", [flat, weight])
    others = [extent for i, extent in enumerate(shape) if i != axis]
    result = builder.emit("reshape", [result], {"shape": (*others, matrix.shape[0])})
    back = tuple(int(place) for place in np.argsort(moved))
    return builder.emit("transpose", [result], {"perm": back})


def _sizes(builder: GraphBuilder, node: OnnxNode, shape: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """The result's extents and the scale of each axis."""
    rank = len(shape)
    axes = [node.axis(axis, rank) for axis in node.ints("axes") or range(rank)]
    sizes, scales = list(shape), [1.0] * rank
    if node.has_input(3) and node.operand(builder, 3).size:
        given = node.int_list(builder, 3, "the sizes")
        ratios = [size / shape[axis] for axis, size in zip(axes, given, strict=True)]
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [ratio] * len(axes)
            given = tuple(floor(ratio * shape[axis] + 0.5) for axis in axes)
        for axis, size, ratio in zip(axes, given, ratios, strict=True):
            sizes[axis], scales[axis] = size, ratio
        return sizes, scales
    place = 1 if node.op_type == "Upsample" else 2
    factors = node.array(builder, place, "the scales").ravel()
    for axis, factor in zip(axes, factors, strict=True):
        scales[axis] = float(factor)
        sizes[axis] = floor(shape[axis] * scales[axis])
    return sizes, scales


def _origin(
    builder: GraphBuilder, node: OnnxNode, how: str, place: int, axis: int, extent: int, size: int, scale: float
) -> float:
    """Where in the operand an element of the result lies."""
    if node.op_type == "Upsample" or how == "asymmetric":
        return place / scale
    if how == "align_corners":
        return 0.0 if size == 1 else place * (extent - 1) / (scale * extent - 1)
    if how == "pytorch_half_pixel" and size == 1:
        return -0.5
    if how == "tf_crop_and_resize":
        rank = len(node.operand(builder, 0).shape)
        axes = [node.axis(one, rank) for one in node.ints("axes") or range(rank)]
        if axis not in axes:
            return float(place)
        region = node.array(builder, 1, "the region").astype("float64").ravel()
        start, end = region[axes.index(axis)], region[len(axes) + axes.index(axis)]
        offset = (end - start) * (extent - 1) / 2 if size == 1 else place * (end - start) * (extent - 1) / (size - 1)
        return float(start * (extent - 1) + offset)
    if how == "half_pixel_symmetric":
        shift = extent / 2 * (1 - size / (scale * extent))
        return shift + (place + 0.5) / scale - 0.5
    if how not in ("half_pixel", "pytorch_half_pixel"):
        raise node.unsupported(f"coordinate_transformation_mode {how!r} is unknown")
    return (place + 0.5) / scale - 0.5


def _row(node: OnnxNode, place: float, extent: int, scale: float) -> Array:
    """The weight of each element of an axis in the element that lies at `place`."""
    row = np.zeros(extent)
    mode = node.text("mode", "nearest")
    if mode == "nearest":
        rounding = "floor" if node.op_type == "Upsample" else node.text("nearest_mode", "round_prefer_floor")
        row[min(max(_ROUNDINGS[rounding](place), 0), extent - 1)] = 1.0
        return row
    if mode not in ("linear", "cubic"):
        raise node.unsupported(f"mode {mode!r} is none of nearest, linear, cubic")
    spread = 1.0 if mode == "linear" else 2.0
    shrink = min(scale, 1.0) if node.integer("antialias", 0) else 1.0
    reach = ceil(spread / shrink)
    sharpness = node.number("cubic_coeff_a", -0.75)
    first = floor(place) - reach
    found = np.arange(first, first + 2 * reach + 2)
    weights = np.array([_kernel(mode, (at - place) * shrink, sharpness) for at in found])
    if node.integer("exclude_outside", 0):
        weights = np.where((found >= 0) & (found < extent), weights, 0.0)
    weights = weights / weights.sum()
    # Unbuffered addition: several taps may be clipped to the same edge element.
    np.add.at(row, np.clip(found, 0, extent - 1), weights)
    return row


def _kernel(mode: str, distance: float, a: float) -> float:
    """The weight of an element at a distance; `a` shapes the cubic one."""
    d = abs(distance)
    if mode == "linear":
        return max(0.0, 1.0 - d)
    # Keys' cubic convolution kernel with parameter a.
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


CONVERTERS: Mapping[str, Converter] = {"Resize": _resize, "Upsample": _resize}
