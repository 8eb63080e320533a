"""Converters of contributed operators on weights of a few bits, several to a byte and scaled by blocks."""

from collections.abc import Mapping

import numpy as np

from retune.compiler.core.dtype import item_bits
from retune.compiler.frontend.ops.elementwise import Converter, in_float32
from retune.compiler.frontend.ops.indexing import cut
from retune.compiler.frontend.ops.standard import Composition, compose
from retune.compiler.ops.few_bits import BYTE, KINDS


def _unpack(write: Composition, packed: str, bits: int, count: int) -> str:
    """The first `count` codes of each row of bytes, the low bits of a byte first."""
    if bits == BYTE:
        return cut(write.builder, packed, len(write.shape(packed)) - 1, 0, count)
    *outer, size = write.shape(packed)
    per_byte = BYTE // bits
    shifts = write.builder.constant(np.arange(0, BYTE, bits, dtype="uint8"), "shifts")
    codes = write("shift_right", write("reshape", packed, shape=(*outer, size, 1)), shifts)
    codes = write("bit_and", codes, (1 << bits) - 1)
    return cut(write.builder, write("reshape", codes, shape=(*outer, size * per_byte)), len(outer), 0, count)


def _matmul(write: Composition) -> str:
    """A times a transposed matrix of (columns, blocks, bytes of a block)."""
    node, x = write.node, write.operand(0)
    depth, columns = node.integer("K", 0), node.integer("N", 0)
    bits, block = node.integer("bits", 4), node.integer("block_size", 0)
    if bits not in KINDS or block < BYTE // bits:
        raise node.unsupported(f"weights of {bits} bits in blocks of {block}; bits are 2, 4 or 8")
    blocks = -(-depth // block)
    *outer, last = write.shape(x)
    if last != depth:
        raise node.unsupported(f"rows of {last} numbers, and K = {depth}")
    codes = write("reshape", write.operand(1), shape=(columns, blocks, block * bits // BYTE))
    scale = write("cast", write("reshape", write.operand(2), shape=(columns, blocks)), dtype="float32")
    offset = write("neg", write("mul", _zeros(write, (columns, blocks), bits), scale))
    rows = write("reshape", x, shape=(int(np.prod(outer)), depth))
    if write.operand(4):
        product = write("dense", rows, _by_group(write, codes, scale, offset))
    else:
        rows = (
            write("pad", rows, pads_before=(0, 0), pads_after=(0, blocks * block - depth), value=0.0)
            if depth % block
            else rows
        )
        turned = [write("transpose", name, perm=(1, 0)) for name in (scale, offset)]
        product = write("dense_bits", rows, write("transpose", codes, perm=(1, 2, 0)), *turned, bits=bits)
    product = write("reshape", product, shape=(*outer, columns))
    return write("add", product, write.operand(5)) if write.operand(5) else product


def _zeros(write: Composition, shape: tuple[int, int], bits: int) -> str:
    """The zero points of blocks as float32: packed, plain, or the middle code."""
    zero = write.operand(3)
    if not zero:
        return write.builder.constant(np.full(shape, 1 << (bits - 1), "float32"), "zero")
    if write.dtype(zero) == "uint8":
        bytes_of_row = -(-shape[1] * bits // BYTE)
        zero = _unpack(write, write("reshape", zero, shape=(shape[0], bytes_of_row)), bits, shape[1])
    return write("cast", write("reshape", zero, shape=shape), dtype="float32")


def _by_group(write: Composition, codes: str, scale: str, offset: str) -> str:
    """The weights (K, N) in float32, where operand 4 has the block of each row: not in order, so each is unpacked."""
    depth, (columns, blocks, size) = write.node.integer("K", 0), write.shape(codes)
    bits = write.node.integer("bits", 4)
    groups = write.operand(4)
    flat = write("reshape", codes, shape=(columns, blocks * size))
    whole = write("cast", _unpack(write, flat, bits, depth), dtype="float32")
    indices = cut(write.builder, groups, 0, 0, depth)
    scales, offsets = (write("gather", name, indices, axis=1) for name in (scale, offset))
    return write("transpose", write("add", write("mul", whole, scales), offsets), perm=(1, 0))


def _gather(write: Composition) -> str:
    """Rows of a table of integers, scaled by blocks of another axis."""
    node, (data, indices, scale) = write.node, write.node.inputs[:3]
    rank = len(write.shape(data))
    axis, blocked = (node.axis(node.integer(key, default), rank) for key, default in _AXES)
    block, packed = node.integer("block_size", 128), write.dtype(data) == "uint8"
    bits = node.integer("bits", 4) if packed else item_bits(write.dtype(data))
    if packed and (axis != 0 or blocked != rank - 1):
        raise node.unsupported("packed bytes need gather_axis 0 and the last axis as quantize_axis")
    extent = write.shape(data)[blocked] * (BYTE // bits if packed else 1)
    zero = write.operand(3)
    codes, zero, scale = (name and write("Gather", name, indices, axis=axis) for name in (data, zero, scale))
    blocked_axis = blocked if blocked < axis else blocked + len(write.shape(indices)) - 1
    codes = _unpack(write, codes, bits, extent) if packed else codes
    zero = _unpack(write, zero, bits, write.shape(scale)[-1]) if packed and zero else zero
    if packed and not zero:
        zero = write.builder.constant(np.full(write.shape(scale), 1 << (bits - 1), "uint8"), "zero")
    return write("DequantizeLinear", codes, scale, zero, axis=blocked_axis, block_size=block)


_AXES = (("gather_axis", 0), ("quantize_axis", 1))

CONVERTERS: Mapping[str, Converter] = {
    "GatherBlockQuantized": compose(_gather),
    "MatMulNBits": in_float32(compose(_matmul)),
}
