"""Products with weights of a few bits, several to a byte, that kernels unpack in registers."""

from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, Typed
from retune.compiler.te.tensor import Tensor

BYTE = 8
"""Bits of a byte."""
KINDS = (2, 4, BYTE)
"""Bits of a code."""


def _shift(index: Expr, bits: int) -> Expr:
    """The bits of a byte below the code at an index."""
    return index * bits


def _weight_of(bits: int, operands: Sequence[Tensor], index: tuple[Expr, Expr, Expr], column: Expr) -> Expr:
    """A weight from codes, scales and offsets at (block, byte in it, code in that) of a column."""
    packed, scales, offsets = operands
    block, byte, part = index
    code: Expr = packed[block, byte, column]
    if bits < BYTE:
        code = (code >> te.cast("uint8", _shift(part, bits))) & ((1 << bits) - 1)
    return te.cast("float32", code) * scales[block, column] + offsets[block, column]


def _check(call: OpCall, operands: Sequence[Typed]) -> tuple[int, int, int, int]:
    """Blocks of a column, bytes of a block, codes of a byte, and columns of packed weights."""
    codes, scale, offset = operands
    bits = call.integer("bits")
    call.require(bits in KINDS and codes.dtype == "uint8", "the codes must be 2, 4 or 8 bits, packed in uint8")
    call.require(len(codes.shape) == 3, "the codes must be (blocks, bytes, N)")
    blocks, size, columns = codes.shape
    fits = scale.shape == offset.shape == (blocks, columns) and scale.dtype == offset.dtype == "float32"
    call.require(fits, "needs a scale and an offset of float32 for each block of a column")
    return blocks, size, BYTE // bits, columns


def _dequantize_bits(call: OpCall) -> Lowered:
    """The weights (K, N) of (codes, scale, offset): code * scale + offset, by blocks."""
    blocks, size, held, columns = _check(call, call.types)
    shape, bits = (blocks * size * held, columns), call.integer("bits")

    def build(*operands: Tensor) -> Tensor:
        def body(k: Expr, j: Expr) -> Expr:
            index = (k // (size * held), k // held % size, k % held)
            return _weight_of(bits, operands, index, j)

        return te.compute(shape, body, name=call.name)

    return Lowered(shape, "float32", build)


def _dense_bits(call: OpCall) -> Lowered:
    """(M, K) x (K, N) of (x, codes, scale, offset): a weight is code * scale + offset, by blocks."""
    x, *weights = call.types
    blocks, size, held, columns = _check(call, weights)
    fits = len(x.shape) == 2 and x.dtype == "float32" and x.shape[1] == blocks * size * held
    call.require(fits, "needs (M, K) of float32, with as many columns as a column has codes")
    shape, bits = (x.shape[0], columns), call.integer("bits")

    def build(a: Tensor, *operands: Tensor) -> Tensor:
        b, r, p = te.reduce_axis(blocks, "b"), te.reduce_axis(size, "r"), te.reduce_axis(held, "p")

        def body(i: Expr, j: Expr) -> Expr:
            weight = _weight_of(bits, operands, (b, r, p), j)
            return te.sum(a[i, (b * size + r) * held + p] * weight, [b, r, p])

        free = tuple(tensor for tensor in operands if tensor in call.constants)
        return te.compute(shape, body, name=call.name, attrs={"layout_free_placeholders": free} if free else None)

    return Lowered(shape, "float32", build)


def _dequantize_bits_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    codes, scale, offset = arrays
    bits = call.integer("bits")
    parts = [(codes >> np.uint8(shift)) & np.uint8((1 << bits) - 1) for shift in range(0, BYTE, bits)]
    whole = np.stack(parts, axis=2).reshape(codes.shape[0], -1, codes.shape[2]).astype("float32")
    return np.asarray(whole * scale[:, None] + offset[:, None]).reshape(-1, codes.shape[2])


def _dense_bits_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    return np.asarray(arrays[0] @ _dequantize_bits_array(call, arrays[1:]))


OPERATORS = (
    Op("dequantize_bits", 3, FusionKind.INJECTIVE, _dequantize_bits, _dequantize_bits_array, {"bits": int}),
    Op("dense_bits", 4, FusionKind.COMPLEX, _dense_bits, _dense_bits_array, {"bits": int}),
)
