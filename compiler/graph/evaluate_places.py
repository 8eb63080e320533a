"""In: a node that finds or follows indices, and arrays. Out: its result, in NumPy. Always: indices are clipped."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retune.compiler.graph.ir import Array, Node

_JOIN: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _inside(indices: Array, extent: int) -> Array:
    """Indices counted from the front, the nearest one for those outside."""
    indices = indices.astype("int64")
    return np.asarray(np.clip(np.where(indices < 0, indices + extent, indices), 0, extent - 1))


def _place(function: Callable[..., Array]) -> Callable[[Node, Sequence[Array]], Array]:
    return lambda node, operands: function(operands[0], axis=node.integer("axis"), keepdims=node.flag("keepdims"))


def _top_k(node: Node, operands: Sequence[Array]) -> Array:
    (x,) = operands
    axis = node.integer("axis")
    if not node.flag("largest"):
        order = np.argsort(x, axis=axis, kind="stable")
    else:
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return np.take(order, np.arange(node.integer("k")), axis=axis)


def _gather(node: Node, operands: Sequence[Array]) -> Array:
    x, indices = operands
    axis = node.integer("axis")
    return np.take(x, _inside(indices, x.shape[axis]), axis=axis)


def _gather_elements(node: Node, operands: Sequence[Array]) -> Array:
    x, indices = operands
    return np.asarray(x[_points(node, x, indices)])


def _points(node: Node, x: Array, indices: Array) -> tuple[Array, ...]:
    axis = node.integer("axis")
    points = [np.asarray(place) for place in np.indices(indices.shape)]
    points[axis] = _inside(indices, x.shape[axis])
    return tuple(points)


def _rows(indices: Array, extents: Sequence[int]) -> list[Array]:
    return [_inside(indices[..., place], extent) for place, extent in enumerate(extents)]


def _gather_nd(node: Node, operands: Sequence[Array]) -> Array:
    x, indices = operands
    batch = node.integer("batch_dims")
    named = indices.shape[-1]
    own = [np.asarray(place) for place in np.indices(indices.shape[:-1])[:batch]]
    return np.asarray(x[(*own, *_rows(indices, x.shape[batch : batch + named]))])


def _scatter_elements(node: Node, operands: Sequence[Array]) -> Array:
    x, indices, updates = operands
    return _joined(node, x, _points(node, x, indices), updates)


def _scatter_nd(node: Node, operands: Sequence[Array]) -> Array:
    x, indices, updates = operands
    return _joined(node, x, tuple(_rows(indices, x.shape[: indices.shape[-1]])), updates)


def _joined(node: Node, x: Array, points: tuple[Array, ...], updates: Array) -> Array:
    result = x.copy()
    if node.text("reduction") == "none":
        result[points] = updates
    else:
        _JOIN[node.text("reduction")].at(result, points, updates)
    return result


PLACE_EVALUATORS: Mapping[str, Callable[[Node, Sequence[Array]], Array]] = {
    "arg_max": _place(np.argmax),
    "arg_min": _place(np.argmin),
    "top_k": _top_k,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
}
