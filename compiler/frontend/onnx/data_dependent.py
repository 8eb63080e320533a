"""Converters of ONNX operators whose output size depends on data: NonMaxSuppression, NonZero and Unique.

The result is a constant, so the data must be known at compile time. If it is not, the error names the inputs to fix.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from retune.compiler.frontend.onnx.attributes import OnnxNode
from retune.compiler.frontend.onnx.elementwise import Converter
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


_CHUNK = 512
"""Boxes compared at a time: with a few good boxes most are never visited."""


def _overlaps(low: Array, high: Array, boxes: Array, box: int) -> Array:
    """Intersection over union of `boxes` with box number `box`; 0 for empty boxes."""
    low, high, own = low[boxes], high[boxes], (low[box], high[box])
    sides = np.maximum(np.minimum(high, own[1]) - np.maximum(low, own[0]), 0)
    shared = sides.prod(axis=1)
    areas, area = (high - low).prod(axis=1), (own[1] - own[0]).prod()
    joined = areas + area - shared
    solid = (shared > 0) & (areas > 0) & (joined > 0)
    return np.where(solid, shared / np.where(solid, joined, 1), 0.0)


def _suppress(low: Array, high: Array, order: Array, most: int, threshold: float) -> list[int]:
    """At most `most` boxes in order, each without an overlap with a box before it."""
    kept: list[int] = []
    for start in range(0, len(order), _CHUNK):
        chunk = order[start : start + _CHUNK]
        for box in kept:
            chunk = chunk[_overlaps(low, high, chunk, box) <= threshold]
        while len(chunk) and len(kept) < most:
            kept.append(int(chunk[0]))
            chunk = chunk[1:][_overlaps(low, high, chunk[1:], kept[-1]) <= threshold]
        if len(kept) >= most:
            break
    return kept


def _non_max_suppression(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """For each image and class: the best box, the best box without an overlap with it, and so on."""
    boxes, scores = (_data(builder, node, index) for index in (0, 1))
    settings = [_data(builder, node, index) if node.has_input(index) else np.zeros(0) for index in (2, 3, 4)]
    limits = [array.ravel()[0].item() if array.size else None for array in settings]
    most, threshold, lowest = int(limits[0] or 0), limits[1] or 0.0, limits[2]
    rows = []
    for image, column in np.ndindex(scores.shape[:2]):
        low, high = _corners(boxes[image], centred=bool(node.integer("center_point_box", 0)))
        own = scores[image, column]
        # Of equal scores the first box wins, as in ONNX Runtime.
        order = np.argsort(-own, kind="stable")
        order = order if lowest is None else order[own[order] > lowest]
        rows += [(image, column, box) for box in _suppress(low, high, order, most, threshold)]
    return [builder.constant(np.asarray(rows, "int64").reshape(-1, 3), node.outputs[0])]


CONVERTERS: Mapping[str, Converter] = {
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "Unique": _unique,
}
