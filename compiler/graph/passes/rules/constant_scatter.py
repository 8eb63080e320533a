"""Rewrite rule of a scatter with constant indices: every element of the result comes from one known operand.

Without the rule each element compares its index with all updates, a product of steps.
"""

from math import prod

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Node
from retune.compiler.graph.passes.rules.views import cut, reshape

_JOINED = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}
"""The operator that combines an update with the existing element."""


def invert_scatter(builder: GraphBuilder, node: Node) -> str | None:
    """scatter_nd(x, constant, new) -> concat(x[:a], new, x[b:]) or where(mask, gather(new, table), x)."""
    indices = builder.array(node.inputs[1]) if node.op == "scatter_nd" else None
    if indices is None:
        return None
    shape, join = builder.value(node.inputs[0]).shape, node.text("reduction")
    depth = indices.shape[-1] if indices.ndim else 0
    if not depth:  # rejected by shape inference
        return None
    if not indices.size:
        return node.inputs[0]
    flat = _flat_indices(indices.reshape(-1, depth), shape[:depth])
    if flat is None or (join != "none" and len(np.unique(flat)) < len(flat)):
        return None
    count, row_shape = prod(shape[:depth]), shape[depth:]
    x = reshape(builder, node.inputs[0], (count, *row_shape))
    new = reshape(builder, node.inputs[2], (len(flat), *row_shape))
    start, stop = (int(flat[0]), int(flat[0]) + len(flat)) if len(flat) else (0, 0)
    if join == "none" and np.array_equal(flat, np.arange(start, stop)):
        ends = [cut(builder, x, 0, *part) if part[0] < part[1] else "" for part in ((0, start), (stop, count))]
        parts = [part for part in (ends[0], new if len(flat) else "", ends[1]) if part]
        result = parts[0] if len(parts) == 1 else builder.emit("concat", parts, {"axis": 0}, name=node.name)
    else:
        # The last of several updates of a row wins.
        table = np.full(count, -1)
        table[flat] = np.arange(len(flat))
        mask = builder.constant((table >= 0).reshape(count, *(1 for _ in row_shape)), f"{node.inputs[1]}_mask")
        rows = builder.constant(np.maximum(table, 0), f"{node.inputs[1]}_rows")
        updates = builder.emit("gather", [new, rows], {"axis": 0})
        updates = updates if join == "none" else builder.emit(_JOINED[join], [x, updates])
        result = builder.emit("where", [mask, updates, x], name=node.name)
    return reshape(builder, result, shape)


def _flat_indices(rows: Array, extents: tuple[int, ...]) -> Array | None:
    """The row-major indices of rows of multi-indices into these extents; None if any is outside."""
    bounds = np.array(extents, dtype=np.int64)
    rows = np.where(rows < 0, rows + bounds, rows)
    if np.any((rows < 0) | (rows >= bounds)):
        return None
    strides = np.array([prod(extents[axis + 1 :]) for axis in range(len(extents))], dtype=np.int64)
    return np.asarray(rows @ strides)
