"""Rewrite rules of scatters: known indices become gathers, and updates that share an index move as one row."""

from math import prod

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Node
from retune.compiler.graph.passes.rules.views import cut, reshape
from retune.compiler.ir.dims import same

_JOINED = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}
"""The operator that combines an update with the existing element."""


def share_indices(builder: GraphBuilder, node: Node) -> str | None:
    """scatter_elements(x, broadcast_to(i), u) -> scatter_nd(x, i, u), or a scatter of elements with fewer indices."""
    few = _shared_indices(builder, node) if node.op == "scatter_elements" else None
    if few is None:
        return None
    x, updates = (builder.value(node.inputs[i]).shape for i in (0, 2))
    indices = builder.value(few).shape
    if node.integer("axis") == 0 and all(same(extent, 1) for extent in indices[1:]) and updates[1:] == x[1:]:
        inputs, attrs = [node.inputs[0], reshape(builder, few, (indices[0], 1)), node.inputs[2]], dict(node.attrs)
        del attrs["axis"]
        return builder.emit("scatter_nd", inputs, attrs, name=node.name)
    return builder.emit(node.op, [node.inputs[0], few, node.inputs[2]], node.attrs, name=node.name)


def _shared_indices(builder: GraphBuilder, node: Node) -> str | None:
    """The indices of a scatter of elements with an extent of 1 along axes where they are equal; None if nowhere."""
    indices, axis = node.inputs[1], node.integer("axis")
    array, producer, shape = builder.array(indices), builder.producer(indices), builder.value(indices).shape
    if array is not None:
        for d in range(array.ndim):
            first = array.take([0], axis=d) if d != axis and array.size else array
            array = first if np.array_equal(np.broadcast_to(first, array.shape), array) else array
        return builder.constant(array, indices) if array.shape != shape else None
    if producer is None or producer.op != "broadcast_to":
        return None
    small = builder.value(producer.inputs[0]).shape
    small = (*(1 for _ in shape[len(small) :]), *small)
    return reshape(builder, producer.inputs[0], small) if same(small[axis], shape[axis]) else None


def flatten_rows(builder: GraphBuilder, node: Node) -> str | None:
    """scatter_nd of blocks -> scatter_nd of rows."""
    if node.op != "scatter_nd":
        return None
    x, indices, updates = (builder.value(name).shape for name in node.inputs)
    depth, rows = indices[-1], len(indices) - 1
    if len(x) - depth < 2:
        return None
    flat = [(*shape[:count], prod(shape[count:])) for shape, count in ((x, depth), (updates, rows))]
    source, new = (reshape(builder, node.inputs[i], shape) for i, shape in zip((0, 2), flat, strict=True))
    return reshape(builder, builder.emit(node.op, [source, node.inputs[1], new], node.attrs, name=node.name), x)


def invert_scatter(builder: GraphBuilder, node: Node) -> str | None:
    """scatter_nd(x, constant, new) -> concat(x[:a], new, x[b:]) or where(mask, gather(new, table), x): every element of
    the result comes from one known operand, so none compares its index with those of all updates.
    """
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


SCATTER_RULES = (share_indices, invert_scatter, flatten_rows)
