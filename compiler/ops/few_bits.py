"""Products with weights of a few bits, several to a byte, that kernels unpack in registers."""

from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall
from retune.compiler.te.tensor import Tensor

BYTE = 8
"""Bits of a byte."""


def _shift(place: Expr, bits: int) -> Expr:
    """The bits of a byte below the code at a place."""
    return place * bits


def _dense_bits(call: OpCall) -> Lowered:
    x, codes, scale, offset = call.types
    bits = call.integer("bits")
    call.require(bits in (2, 4, 8) and codes.dtype == "uint8", "the codes must be 2, 4 or 8 bits, packed in uint8")
    call.require(len(x.shape) == 2 and len(codes.shape) == 3, "needs (M, K) and codes (blocks, bytes, N)")
    blocks, size, columns = codes.shape
    held = BYTE // bits
    call.require(x.shape[1] == blocks * size * held, "K must be the number of codes of a column")
    fits = scale.shape == offset.shape == (blocks, columns) and x.dtype == scale.dtype == offset.dtype == "float32"
    call.require(fits, "needs a scale and an offset of float32 for each block of a column")
    shape = (x.shape[0], columns)

    def build(a: Tensor, packed: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
        b, r, p = te.reduce_axis(blocks, "b"), te.reduce_axis(size, "r"), te.reduce_axis(held, "p")

        def body(i: Expr, j: Expr) -> Expr:
            code: Expr = packed[b, r, j]
            if held > 1:
                code = (code >> te.cast("uint8", _shift(p, bits))) & ((1 << bits) - 1)
            weight = te.cast("float32", code) * scales[b, j] + offsets[b, j]
            return te.sum(a[i, (b * size + r) * held + p] * weight, [b, r, p])

        free = tuple(tensor for tensor in (packed, scales, offsets) if tensor in call.constants)
        return te.compute(shape, body, name=call.name, attrs={"layout_free_placeholders": free} if free else None)

    return Lowered(shape, "float32", build)


def _dense_bits_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, codes, scale, offset = arrays
    bits = call.integer("bits")
    parts = [(codes >> np.uint8(shift)) & np.uint8((1 << bits) - 1) for shift in range(0, BYTE, bits)]
    whole = np.stack(parts, axis=2).reshape(codes.shape[0], -1, codes.shape[2]).astype("float32")
    return np.asarray(x @ (whole * scale[:, None] + offset[:, None]).reshape(x.shape[1], -1))


OPERATORS = (
    Op(
        "dense_bits",
        4,
        FusionKind.COMPLEX,
        "(M, K) x (K, N) of (x, codes, scale, offset): a weight is code * scale + offset, by blocks",
        _dense_bits,
        _dense_bits_array,
        {"bits": int},
    ),
)
