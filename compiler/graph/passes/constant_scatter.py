"""Rewrite rule of a scatter whose places are constants: every element of the result is known to come from one operand.

In general each element compares its place with those of all updates, which takes their product of steps.
"""

from math import prod

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Node
from retune.compiler.graph.passes.views import cut, reshaped

_JOINED = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}
"""The operator by which an update joins the element that is there."""


def invert_scatter(builder: GraphBuilder, node: Node) -> str | None:
    """scatter_nd(x, constant, new) -> concat(x[:a], new, x[b:]) where the places follow each other, else
    where(mask, gather(new, table), x).
    """
    indices = builder.array(node.inputs[1]) if node.op == "scatter_nd" else None
    if indices is None:
        return None
    shape, join = builder.value(node.inputs[0]).shape, node.text("reduction")
    named = indices.shape[-1] if indices.ndim else 0
    if not named:  # refused where its shape is inferred
        return None
    if not indices.size:
        return node.inputs[0]
    places = _places(indices.reshape(-1, named), shape[:named])
    if places is None or (join != "none" and len(np.unique(places)) < len(places)):
        return None
    count, rest = prod(shape[:named]), shape[named:]
    x = reshaped(builder, node.inputs[0], (count, *rest))
    new = reshaped(builder, node.inputs[2], (len(places), *rest))
    start, stop = (int(places[0]), int(places[0]) + len(places)) if len(places) else (0, 0)
    if join == "none" and np.array_equal(places, np.arange(start, stop)):
        ends = [cut(builder, x, 0, *part) if part[0] < part[1] else "" for part in ((0, start), (stop, count))]
        parts = [part for part in (ends[0], new if len(places) else "", ends[1]) if part]
        result = parts[0] if len(parts) == 1 else builder.emit("concat", parts, {"axis": 0}, name=node.name)
    else:
        # Of updates for one place the last one stays.
        table = np.full(count, -1)
        table[places] = np.arange(len(places))
        mask = builder.constant((table >= 0).reshape(count, *(1 for _ in rest)), f"{node.inputs[1]}_mask")
        rows = builder.constant(np.maximum(table, 0), f"{node.inputs[1]}_rows")
        taken = builder.emit("gather", [new, rows], {"axis": 0})
        taken = taken if join == "none" else builder.emit(_JOINED[join], [x, taken])
        result = builder.emit("where", [mask, taken, x], name=node.name)
    return reshaped(builder, result, shape)


def _places(rows: Array, extents: tuple[int, ...]) -> Array | None:
    """The places that rows of indices name, of a matrix of these extents in row-major order; None if one is outside."""
    bounds = np.array(extents, dtype=np.int64)
    rows = np.where(rows < 0, rows + bounds, rows)
    if np.any((rows < 0) | (rows >= bounds)):
        return None
    strides = np.array([prod(extents[axis + 1 :]) for axis in range(len(extents))], dtype=np.int64)
    return np.asarray(rows @ strides)
