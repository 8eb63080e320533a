"""Converters of contributed operators on arrays: indices, shapes, transforms, inverse matrices and distances."""

from collections.abc import Mapping
from math import prod

import numpy as np

from retune.compiler.frontend.ops.elementwise import Converter, in_float32
from retune.compiler.frontend.ops.indexing import cut
from retune.compiler.frontend.ops.standard import STANDARD, Composition, compose
from retune.compiler.ir.dims import whole

_LARGEST = 16
"""Most rows of a matrix to invert: each costs ten nodes."""


def _expand_dims(write: Composition) -> str:
    axis = whole(write.node.array(write.builder, 1, "the axis").item())
    return write("Unsqueeze", write.operand(0), (axis,))


def _range(write: Composition) -> str:
    names = [name for name in write.node.inputs if name]
    bounds = [write("reshape", name, shape=()) for name in names]
    return write("Range", *bounds, *([1] if len(bounds) == 2 else []))


def _spectrum(write: Composition, x: str, **attributes: int) -> str:
    for key, value in (("onesided", 1), ("normalized", 0), ("signal_ndim", 1)):
        write.expect(key, value)
    return write("DFT", x, "", np.asarray(-2), onesided=1, **attributes)


def _rfft(write: Composition) -> str:
    x = write.operand(0)
    return _spectrum(write, write("reshape", x, shape=(*write.shape(x), 1)))


def _irfft(write: Composition) -> str:
    x = _spectrum(write, write.operand(0), inverse=1)
    return write("reshape", x, shape=write.shape(x)[:-1])


def _inverse(write: Composition) -> str:
    """By Gauss-Jordan elimination with partial pivoting, a column after the other."""
    x = write.operand(0)
    *outer, rows, columns = write.shape(x)
    if rows != columns or rows > _LARGEST:
        raise write.node.unsupported(f"a matrix of {rows} x {columns}; only square matrices up to {_LARGEST} rows")
    batch = prod(outer)
    x = write("reshape", x, shape=(batch, rows, rows))
    unit = write.builder.constant(np.eye(rows, dtype=write.dtype(x)), "unit")
    both = write("concat", x, write("broadcast_to", unit, shape=(batch, rows, rows)), axis=2)
    places = write.builder.arange(rows)
    for index in range(rows):
        below = write("abs", _part(write, both, (index, rows), (index, index + 1)))
        pivot = write("add", write("reshape", write("arg_max", below, axis=1, keepdims=True), shape=(batch, 1)), index)
        is_own = write("equal", places, index)
        moved = write("where", is_own, pivot, write("where", write("equal", places, pivot), index, places))
        both = write("gather_nd", both, write("reshape", moved, shape=(batch, rows, 1)), batch_dims=1)
        row, factor = (_part(write, both, *part) for part in (((index, index + 1),), ((0, rows), (index, index + 1))))
        row = write("div", row, _part(write, row, (0, 1), (index, index + 1)))
        others = write("sub", both, write("mul", factor, row))
        both = write("where", write("reshape", is_own, shape=(rows, 1)), row, others)
    return write("reshape", _part(write, both, (0, rows), (rows, 2 * rows)), shape=(*outer, rows, rows))


def _part(write: Composition, x: str, rows: tuple[int, int], columns: tuple[int, int] | None = None) -> str:
    """Some rows and columns of matrices (B, M, N)."""
    x = cut(write.builder, x, 1, *rows)
    return x if columns is None else cut(write.builder, x, 2, *columns)


def _conv_transpose(write: Composition) -> str:
    """ConvTranspose with its padding as an operand."""
    attributes = dict(write.node.attributes)
    if write.operand(2):
        attributes["pads"] = write.node.int_list(write.builder, 2, "the padding")
    return write("ConvTranspose", *write.node.inputs[:2], write.operand(3), **attributes)


def _distances(write: Composition) -> str:
    """Between all rows of two matrices."""
    metric = write.node.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise write.node.unsupported(f"metric {metric!r} is neither 'euclidean' nor 'sqeuclidean'")
    a, b = write.node.inputs[:2]
    apart = write("sub", write("reshape", a, shape=(write.shape(a)[0], 1, write.shape(a)[1])), b)
    total = write("reduce_sum", write("mul", apart, apart), axes=(2,), keepdims=False)
    return write("sqrt", total) if metric == "euclidean" else total


CONVERTERS: Mapping[str, Converter] = {
    "CDist": compose(_distances),
    "ConvTransposeWithDynamicPads": compose(_conv_transpose),
    "ExpandDims": compose(_expand_dims),
    "GatherND": STANDARD["GatherND"],
    "GridSample": STANDARD["GridSample"],
    "Inverse": in_float32(compose(_inverse)),
    "Irfft": in_float32(compose(_irfft)),
    "Pad": STANDARD["Pad"],
    "Range": compose(_range),
    "Rfft": in_float32(compose(_rfft)),
    "Trilu": STANDARD["Trilu"],
}
