"""Converters of ONNX operators whose output size depends on data: NonMaxSuppression, NonZero and Unique.

The result is a constant, so the data must be known at compile time. If it is not, the error names the inputs to fix.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array


def _data(builder: GraphBuilder, node: OnnxNode, index: int = 0) -> Array:
    return node.array(builder, index, "the data, on which the shape of the result depends,")


def _non_zero(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    data = _data(builder, node)
    indices = np.stack(np.nonzero(np.atleast_1d(data))) if data.ndim else np.zeros((0, int(bool(data))), "int64")
    return [builder.constant(indices.astype("int64"), node.outputs[0])]


def _unique(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    data = _data(builder, node)
    axis = None
    if "axis" in node.attributes:
        axis = node.axis(node.integer("axis", 0), data.ndim)
    narrow = data.dtype
    # Exact: float32 holds every bfloat16.
    comparable = data.astype("float32") if narrow.name == "bfloat16" else data
    values, first, inverse, counts = np.unique(comparable, True, True, True, axis=axis)
    inverse = inverse.ravel()
    if not node.integer("sorted", 1):
        # ONNX's unsorted order is that of first occurrences; the inverse of the permutation renumbers the elements.
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order, kind="stable")
        values, first, counts = np.take(values, order, axis=axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    results = [values.astype(narrow), *(part.astype("int64") for part in (first, inverse, counts))]
    names = [name or "unique" for name in (*node.outputs, *("",) * 4)]
    return [builder.constant(array, name) for array, name in zip(results, names, strict=False)]


def _corners(boxes: Array, *, centred: bool) -> tuple[Array, Array]:
    """The lower and upper corners, (N, 2) each, of boxes given by center and size or by two opposite corners."""
    if centred:
        half = boxes[:, 2:] / 2
        return boxes[:, :2] - half, boxes[:, :2] + half
    # ONNX allows any pair of opposite corners.
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _overlaps_box(low: Array, high: Array, box: int, threshold: float) -> Array:
    """Whether the intersection over union of each box with one box exceeds a threshold; that of empty boxes is 0."""
    sides = np.maximum(np.minimum(high, high[box]) - np.maximum(low, low[box]), 0)
    shared, areas = sides[:, 0] * sides[:, 1], (high[:, 0] - low[:, 0]) * (high[:, 1] - low[:, 1])
    joined = areas + areas[box] - shared
    solid = (shared > 0) & (areas > 0) & (joined > 0)
    return ~(np.where(solid, shared / np.where(solid, joined, 1), 0.0) <= threshold)


_MOST_SHARED = 4096
"""Boxes of an image up to which its classes share overlaps: one byte for each pair of boxes."""


def _suppress(order: Array, most: int, overlapping: Callable[[int], Array]) -> list[int]:
    """At most `most` boxes in order, each without an overlap with a box before it."""
    kept: list[int] = []
    suppressed = None
    for box in order.tolist():
        if len(kept) >= most:
            break
        if suppressed is None or not suppressed[box]:
            kept.append(box)
            suppressed = overlapping(box) if suppressed is None else suppressed | overlapping(box)
    return kept


def _non_max_suppression(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """For each image and class: the best box, the best box without an overlap with it, and so on."""
    boxes, scores = (_data(builder, node, index) for index in (0, 1))
    settings = [_data(builder, node, index) if node.has_input(index) else np.zeros(0) for index in (2, 3, 4)]
    limits = [array.ravel()[0].item() if array.size else None for array in settings]
    most, threshold, lowest = int(limits[0] or 0), limits[1] or 0.0, limits[2]
    rows = []
    for image in range(len(scores)):
        low, high = _corners(boxes[image], centred=bool(node.integer("center_point_box", 0)))
        overlapping: Callable[[int], Array] = partial(_overlaps_box, low, high, threshold=threshold)
        if len(low) <= _MOST_SHARED:
            overlapping = cache(overlapping)
        for column, own in enumerate(scores[image]):
            # Of equal scores the first box wins, as in ONNX Runtime.
            order = np.argsort(-own, kind="stable")
            order = order if lowest is None else order[own[order] > lowest]
            rows += [(image, column, box) for box in _suppress(order, most, overlapping)]
    return [builder.constant(np.asarray(rows, "int64").reshape(-1, 3), node.outputs[0])]


CONVERTERS: Mapping[str, Converter] = {
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "Unique": _unique,
}
