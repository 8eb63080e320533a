"""Converts matrices of integers below a byte, and their products: weights stay packed until the kernel multiplies."""

import numpy as np

from retune.compiler.core.dtype import finite_limit, item_bits
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array
from retune.compiler.ops.few_bits import BYTE, KINDS

PACKED = "dequantize_bits"
"""The operator of packed weights."""


def pack_matrix(builder: GraphBuilder, node: OnnxNode) -> str:
    """Emit the DequantizeLinear `node` of a constant matrix with packed codes, and return the result.

    "" where the matrix is not constant, or not scaled by whole blocks of rows or columns.
    """
    x, scale = (builder.array(name) for name in node.inputs[:2])
    zero = builder.array(node.inputs[2]) if node.has_input(2) else np.zeros((), "int32")
    if x is None or scale is None or zero is None or x.ndim != 2 or scale.dtype != "float32" or scale.size < 2:
        return ""
    bits, axis, block = item_bits(x.dtype.name), node.axis(node.integer("axis", 1), 2), node.integer("block_size", 0)
    if scale.ndim == 1:  # a scale for each index of `axis`: one block along the other
        axis, block = 1 - axis, x.shape[1 - axis]
        scale = np.expand_dims(scale, axis)
    if bits not in KINDS or not block or block % (BYTE // bits) or x.shape[axis] % block:
        return ""
    zero = np.broadcast_to(zero.reshape(scale.shape if zero.size > 1 else ()), scale.shape)
    # From here on blocks lie along the rows.
    transposed = [array.T if axis == 1 else array for array in (x.astype("int32"), scale, zero.astype("int32"))]
    codes, scale, zero = transposed
    least = int(finite_limit(x.dtype.name, is_least=True))
    offset = (least - zero).astype("float32") * scale
    packed = _pack((codes - least).astype("uint8"), bits, block)
    operands = [builder.constant(np.ascontiguousarray(array), node.name) for array in (packed, scale, offset)]
    result = builder.emit(PACKED, operands, {"bits": bits}, name=node.name, output=node.outputs[0])
    return builder.emit("transpose", [result], {"perm": (1, 0)}, name=node.name) if axis == 1 else result


def _pack(codes: Array, bits: int, block: int) -> Array:
    """Codes (K, N) as bytes (blocks, bytes of a block, N), the first code of a byte in its low bits."""
    per_byte = BYTE // bits
    parts = codes.reshape(len(codes) // block, block // per_byte, per_byte, codes.shape[1])
    return np.asarray(sum(parts[:, :, part] << np.uint8(bits * part) for part in range(per_byte)), "uint8")


def multiply_rows(builder: GraphBuilder, node: OnnxNode, rows: str, matrix: str) -> str:
    """Emit the product of `rows` (M, K) and `matrix` (K, N), which may be packed."""
    source, is_transposed = builder.producer(matrix), False
    while source is not None and source.op == "transpose":
        source, is_transposed = builder.producer(source.inputs[0]), not is_transposed
    if source is not None and source.op == PACKED and not is_transposed:
        operands, attributes = [rows, *source.inputs], dict(source.attrs)
        return builder.emit("dense_bits", operands, attributes, name=node.name, output=node.outputs[0])
    return builder.emit("dense", [rows, matrix], name=node.name, output=node.outputs[0])
