"""Converters of quantized ONNX operators: QuantizeLinear, DequantizeLinear, integer and QLinear products.

A quantized number q stands for scale * (q - zero). With bytes and constant scales, nodes become `quantize`,
`dequantize` and products of floats, which `retune.compiler.graph.passes.quantized` turns into products of bytes. Other
nodes become arithmetic in int32 and floats here. Products accumulate exactly in int32. Results are rounded half to even
and saturated. The operators of com.microsoft are in `contributed/quantized.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

from retune.compiler.core.dtype import NARROW_FLOATS, NARROW_INTEGERS, is_float, item_bits, sum_type
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, cast_to, formula_of, saturate
from retune.compiler.frontend.ops.few_bits import pack_matrix
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.frontend.ops.nn import as_channels, convolution, matrix_product
from retune.compiler.graph.builder import GraphBuilder

_STORED = ("int8", "uint8", "int16", "uint16", *NARROW_INTEGERS, "int32")
"""Types of quantized integers; int32 is only dequantized."""
_BYTE = 8
"""Bits."""


def _align(builder: GraphBuilder, node: OnnxNode, name: str, shape: tuple[int, ...]) -> str:
    """Reshape a scale or zero point to broadcast to `shape`: a single number, one per slice, or one per block."""
    own_shape = builder.value(name).shape
    if builder.value(name).size == 1:
        return builder.emit("reshape", [name], {"shape": ()})
    axis = node.axis(node.integer("axis", 1), len(shape))
    if len(own_shape) == 1:
        return builder.emit("reshape", [name], {"shape": (own_shape[0], *(1 for _ in shape[axis + 1 :]))})
    block = node.integer("block_size", 0)
    if not block:
        raise node.unsupported("a scale of several dimensions needs a block_size")
    return take(builder, name, axis, [index // block for index in range(shape[axis])])


def _quantize_ratio(builder: GraphBuilder, node: OnnxNode, ratio: str, zero: str, dtype: str) -> str:
    """Convert x / scale to the quantized type: round, add the zero point ("" for none), clip."""
    if dtype in NARROW_FLOATS:
        # Zero points of floats are 0 by definition: ONNX Runtime and the reference ignore others of float8.
        if zero and item_bits(dtype) < _BYTE:
            ratio = builder.emit("add", [ratio, cast_to(builder, zero, builder.value(ratio).dtype)])
        return saturate(builder, node, ratio, dtype)
    if dtype not in _STORED[:-1]:
        raise node.unsupported(f"no quantization to {dtype}")
    shift = cast_to(builder, zero, "int32") if zero else builder.scalar(0, "int32")
    return builder.emit("saturate", [ratio, shift], {"dtype": dtype}, name=node.name, output=node.outputs[0])


def _has_graph_operator(builder: GraphBuilder, node: OnnxNode, dtype: str) -> bool:
    """Whether the graph's `quantize` and `dequantize` fit: bytes or int32, with a constant scale for all or an axis."""
    scale = node.operand(builder, 1)
    has_constants = all(builder.is_constant(node.inputs[i]) for i in (1, 2) if node.has_input(i))
    # Passes turn this form into integer layers, see `retune.compiler.graph.passes.quantized`.
    is_plain = len(scale.shape) <= 1 and scale.dtype == "float32" and not node.integer("block_size", 0)
    return is_plain and has_constants and dtype in ("int8", "uint8", "int32")


def _emit_graph_operator(builder: GraphBuilder, node: OnnxNode, op: str, dtype: str) -> str:
    """Emit `quantize` or `dequantize`; a zero point that the node omits is 0 of `dtype`."""
    x, scale = node.operand(builder, 0), node.operand(builder, 1)
    zero = node.inputs[2] if node.has_input(2) else builder.constant(np.zeros(scale.shape, dtype), "zero")
    axis = node.axis(node.integer("axis", 1), len(x.shape)) if scale.size > 1 else 0
    operands = [x.name, scale.name, zero]
    return builder.emit(op, operands, {"axis": axis}, name=node.name, output=node.outputs[0])


def _read_element_type(node: OnnxNode, attribute: str) -> str:
    """The element type that an attribute names; "" for 0."""
    number = node.integer(attribute, 0)
    return str(helper.tensor_dtype_to_np_dtype(number).name) if number else ""


def _quantize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    stored = builder.value(node.inputs[2]).dtype if node.has_input(2) else "uint8"
    is_default_type = node.has_input(2) or not (node.integer("output_dtype", 0) or node.integer("precision", 0))
    if x.dtype == "float32" and is_default_type and stored != "int32" and _has_graph_operator(builder, node, stored):
        return [_emit_graph_operator(builder, node, "quantize", stored)]
    zero = _align(builder, node, node.inputs[2], x.shape) if node.has_input(2) else ""
    dtype = stored if zero else _read_element_type(node, "output_dtype") or stored
    scale = _align(builder, node, node.operand(builder, 1).name, x.shape)
    compute_type = _read_element_type(node, "precision") or builder.value(scale).dtype
    compute_type = sum_type(compute_type) if is_float(compute_type) else "float32"
    ratio = builder.emit("true_div", [cast_to(builder, name, compute_type) for name in (x.name, scale)])
    return [_quantize_ratio(builder, node, ratio, zero, dtype)]


def _subtract_zero(builder: GraphBuilder, node: OnnxNode, x: str, zero: str) -> str:
    """Emit x - zero in int32; `zero` is aligned with x, "" for none."""
    if builder.value(x).dtype not in _STORED:
        raise node.unsupported(f"no quantized numbers of {builder.value(x).dtype}")
    x = cast_to(builder, x, "int32")
    return builder.emit("sub", [x, cast_to(builder, zero, "int32")]) if zero else x


def _dequantize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    output_dtype = _read_element_type(node, "output_dtype")
    if _has_graph_operator(builder, node, x.dtype) and output_dtype in ("", "float32"):
        return [_emit_graph_operator(builder, node, "dequantize", x.dtype)]
    packed = pack_matrix(builder, node) if x.dtype in NARROW_INTEGERS and output_dtype in ("", "float32") else ""
    if packed:
        return [packed]
    scale = _align(builder, node, node.operand(builder, 1).name, x.shape)
    zero = _align(builder, node, node.inputs[2], x.shape) if node.has_input(2) else ""
    dtype = output_dtype or builder.value(scale).dtype
    if not is_float(dtype) or not is_float(builder.value(scale).dtype):
        raise node.unsupported("the scale and the result must be floats")
    compute_type = sum_type(builder.value(scale).dtype)
    if x.dtype in NARROW_FLOATS:
        shifted = cast_to(builder, x.name, compute_type)
    else:
        shifted = cast_to(builder, _subtract_zero(builder, node, x.name, zero), compute_type)
    factor = cast_to(builder, scale, compute_type)
    # A product that joins a sum would be rounded with it on CPUs with multiply-adds; a constant is folded.
    op = "mul" if builder.is_constant(shifted) else "rounded_mul"
    product = builder.emit(op, [shifted, factor], name=node.name, output=node.outputs[0])
    return [cast_to(builder, product, dtype)]


def _align_to_matrix(builder: GraphBuilder, name: str, *, of_rows: bool) -> str:
    """Reshape a zero point or scale to broadcast to a matrix: a single number, one per row or one per column."""
    shape = builder.value(name).shape
    if builder.value(name).size == 1:
        return builder.emit("reshape", [name], {"shape": ()})
    return builder.emit("reshape", [name], {"shape": (*shape, 1)}) if of_rows and len(shape) == 1 else name


def _multiply_bytes(builder: GraphBuilder, node: OnnxNode) -> str:
    """Emit MatMulInteger with a constant matrix as `qdense`, a product of bytes; "" for any other product.

    The first operand's zero point contributes itself times the column sums of the matrix, so it may be computed.
    """
    a, weight = node.operand(builder, 0), builder.array(node.operand(builder, 1).name)
    zero = builder.array(node.inputs[3]) if node.has_input(3) else np.zeros((), np.int8)
    is_scalar_zero = not node.has_input(2) or builder.value(node.inputs[2]).size == 1
    if weight is None or zero is None or weight.ndim != 2 or len(a.shape) < 2 or not is_scalar_zero:
        return ""
    numbers = weight.astype(np.int32) - zero.astype(np.int32)
    # They become int8 below; without their zero point, bytes may reach 255 either way.
    if {a.dtype, weight.dtype.name} - {"int8", "uint8"} or abs(numbers).max(initial=0) > 127:
        return ""
    rows = builder.emit("reshape", [a.name], {"shape": (a.size // a.shape[-1], a.shape[-1])})
    product = builder.emit("qdense", [rows, builder.constant(numbers.astype(np.int8), node.inputs[1])], name=node.name)
    if node.has_input(2):
        left_zero = cast_to(builder, builder.emit("reshape", [node.inputs[2]], {"shape": ()}), "int32")
        # (a - z) W = a W - z (1ᵀ W), exact in int32.
        sums = builder.constant(numbers.sum(axis=0, dtype=np.int32), "sums")
        product = builder.emit("sub", [product, builder.emit("mul", [left_zero, sums])])
    return builder.emit("reshape", [product], {"shape": (*a.shape[:-1], weight.shape[1])}, output=node.outputs[0])


def _matmul_integer(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    product = _multiply_bytes(builder, node)
    if product:
        return [product]
    zeros = [_align_to_matrix(builder, node.inputs[i], of_rows=i == 2) if node.has_input(i) else "" for i in (2, 3)]
    a, b = (_subtract_zero(builder, node, node.operand(builder, i).name, zeros[i]) for i in (0, 1))
    return [matrix_product(builder, node, a, b)]


def _dynamic_quantize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """Quantize floats by their own range, which includes 0. Returns the bytes, their scale and zero point."""
    write, x = formula_of(builder, node)
    axes = tuple(range(len(builder.value(x).shape)))
    low, high = (write(f"reduce_{end}", x, axes=axes, keepdims=False) for end in ("min", "max"))
    low, high = write("minimum", low, 0), write("maximum", high, 0)
    width = write("sub", high, low)
    scale = write("where", write("equal", width, 0), 1, write("true_div", width, 255))
    zero = write("saturate", write("true_div", write("neg", low), scale), builder.scalar(0, "int32"), dtype="uint8")
    shift = write("cast", zero, dtype="int32")
    return [write("saturate", write("true_div", x, scale), shift, dtype="uint8"), scale, zero]


@dataclass(frozen=True, slots=True)
class Matrix:
    """The second factor (K, N) of a product: floats, or bytes with a scale and a zero point, for all or each column."""

    name: str
    scale: str = ""
    zero: str = ""

    def after(self, builder: GraphBuilder, node: OnnxNode, x: str) -> str:
        """Emit the product of floats `x` (M, K) and this. If this is of bytes, `x` is quantized by its own range."""
        if not self.scale:
            return builder.emit("dense", [x, self.name], name=node.name, output=node.outputs[0])
        stored, scale, zero = _dynamic_quantize(builder, replace(node, inputs=(x,)))
        (product,) = _matmul_integer(builder, replace(node, inputs=(stored, self.name, zero, self.zero)))
        scale = builder.emit("mul", [scale, _align_to_matrix(builder, self.scale, of_rows=False)])
        return builder.emit("mul", [cast_to(builder, product, builder.value(scale).dtype), scale])


def _requantize(builder: GraphBuilder, node: OnnxNode, product: str, scales: Sequence[str], zero: str) -> str:
    """Quantize an int32 product: times the operands' scales, divided by the result's, the last of `scales`."""
    left_scale, right_scale, result_scale = (cast_to(builder, name, "float32") for name in scales)
    real = builder.emit("mul", [cast_to(builder, product, "float32"), builder.emit("mul", [left_scale, right_scale])])
    aligned_zero = builder.emit("reshape", [zero], {"shape": ()}) if builder.value(zero).size == 1 else zero
    ratio = builder.emit("div", [real, result_scale])
    return _quantize_ratio(builder, node, ratio, aligned_zero, builder.value(zero).dtype)


def _fits_bytes(builder: GraphBuilder, x: Sequence[str], weight: Sequence[str]) -> bool:
    """Whether passes can compute the product from bytes, exactly. Operands are (numbers, scale, zero point)."""
    known = [builder.array(name) for name in (*x[1:], *weight)]
    if any(array is None for array in known) or any(builder.value(name).size > 1 for name in x[1:]):
        return False
    dtypes = {builder.value(name).dtype for name in (x[0], weight[0])}
    numbers, zero = (known[index] for index in (2, 4))
    if dtypes - {"int8", "uint8"} or numbers is None or zero is None:
        return False
    most, least = int(numbers.max(initial=0)) - int(zero.min()), int(numbers.min(initial=0)) - int(zero.max())
    return bool(numbers.size and most <= 127 and least >= -128)


def _dequantize_operand(builder: GraphBuilder, node: OnnxNode, operand: Sequence[str], axis: int = 0) -> str:
    """Dequantize an operand (numbers, scale, zero point)."""
    (real,) = _dequantize(builder, replace(node, inputs=tuple(operand), attributes={"axis": axis}))
    return real


def _quantize_result(builder: GraphBuilder, node: OnnxNode, real: str) -> Sequence[str]:
    """Quantize the result of a QLinear product by its last scale and zero point."""
    return _quantize(builder, replace(node, inputs=(real, *node.inputs[6:8]), attributes={}))


def _qlinear_matmul(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    a, b = (node.inputs[first : first + 3] for first in (0, 3))
    if len(node.operand(builder, 3).shape) == 2 and _fits_bytes(builder, a, b):
        left, right = _dequantize_operand(builder, node, a), _dequantize_operand(builder, node, b, 1)
        return _quantize_result(builder, node, matrix_product(builder, node, left, right))
    return _multiply_in_int32(builder, node)


def _multiply_in_int32(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """QLinearMatMul for scales that are not constant, and for other types and shapes."""
    columns = [_align_to_matrix(builder, node.operand(builder, i).name, of_rows=i in (1, 2)) for i in (1, 2, 4, 5, 6)]
    a = _subtract_zero(builder, node, node.operand(builder, 0).name, columns[1])
    b = _subtract_zero(builder, node, node.operand(builder, 3).name, columns[3])
    product = matrix_product(builder, node, a, b)
    return [_requantize(builder, node, product, (columns[0], columns[2], columns[4]), node.inputs[7])]


def _align_to_weight(builder: GraphBuilder, name: str, rank: int) -> str:
    """Reshape a scale or zero point to broadcast to the weight of a convolution: a single number, or one per output."""
    size = builder.value(name).size
    return builder.emit("reshape", [name], {"shape": () if size == 1 else (size, *(1 for _ in range(rank - 1)))})


def _conv_integer(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, w = node.operand(builder, 0), node.operand(builder, 1)
    zeros = [_align_to_weight(builder, node.inputs[i], len(w.shape)) if node.has_input(i) else "" for i in (2, 3)]
    left, right = _subtract_zero(builder, node, x.name, zeros[0]), _subtract_zero(builder, node, w.name, zeros[1])
    return [convolution(builder, node, left, right)]


def _dequantize_bias(builder: GraphBuilder, node: OnnxNode, bias: str) -> str:
    """Dequantize an int32 bias, whose scale is the product of the operands' scales."""
    scale = builder.emit("mul", [builder.emit("reshape", [node.inputs[1]], {"shape": ()}), node.inputs[4]])
    zero = builder.constant(np.zeros(builder.value(scale).shape, "int32"), "zero")
    return _dequantize_operand(builder, node, (bias, scale, zero), 1)


def _qlinear_conv(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, w = node.operand(builder, 0), node.operand(builder, 3)
    rank = len(w.shape)
    data, weight = node.inputs[:3], node.inputs[3:6]
    if rank in (3, 4) and _fits_bytes(builder, data, weight):
        left, right = (_dequantize_operand(builder, node, operand) for operand in (data, weight))
        real = convolution(builder, node, left, right)
        if node.has_input(8):
            bias = _dequantize_bias(builder, node, as_channels(builder, node.inputs[8], rank))
            real = builder.emit("add", [real, bias])
        return _quantize_result(builder, node, real)
    left = _subtract_zero(builder, node, x.name, _align_to_weight(builder, node.inputs[2], rank))
    right = _subtract_zero(builder, node, w.name, _align_to_weight(builder, node.inputs[5], rank))
    product = convolution(builder, node, left, right)
    if node.has_input(8):
        product = builder.emit("add", [product, as_channels(builder, node.inputs[8], rank)])
    scales = [_align_to_weight(builder, node.inputs[i], rank) for i in (1, 4, 6)]
    if builder.value(scales[1]).size > 1:
        scales[1] = as_channels(builder, node.inputs[4], rank)
    return [_requantize(builder, node, product, scales, node.inputs[7])]


CONVERTERS: Mapping[str, Converter] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
