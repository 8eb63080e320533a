"""Converters of quantized ONNX operators: QuantizeLinear, DequantizeLinear and integer products.

Products accumulate exactly in int32. Results are rounded half to even and saturated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

from retune.compiler.core.dtype import (
    NARROW_FLOATS,
    NARROW_INTEGERS,
    finite_limit,
    is_float,
    item_bits,
    sum_type,
)
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, cast_to, formula_of, saturate
from retune.compiler.frontend.ops.few_bits import pack_matrix
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.frontend.ops.nn import as_channels, convolved, matrix_product
from retune.compiler.graph.builder import GraphBuilder

_STORED = ("int8", "uint8", "int16", "uint16", *NARROW_INTEGERS, "int32")
_BYTE = 8


def _align(builder: GraphBuilder, node: OnnxNode, name: str, shape: tuple[int, ...]) -> str:
    """A scale or zero point in the shape for a tensor of `shape`: a single number, one per slice, or one per block."""
    own = builder.value(name).shape
    if builder.value(name).size == 1:
        return builder.emit("reshape", [name], {"shape": ()})
    axis = node.axis(node.integer("axis", 1), len(shape))
    if len(own) == 1:
        return builder.emit("reshape", [name], {"shape": (own[0], *(1 for _ in shape[axis + 1 :]))})
    block = node.integer("block_size", 0)
    if not block:
        raise node.unsupported("a scale of several dimensions needs a block_size")
    return take(builder, name, axis, [index // block for index in range(shape[axis])])


def _round(builder: GraphBuilder, node: OnnxNode, x: str, zero: str, dtype: str) -> str:
    """A float in the quantized type: rounded, shifted by the zero point, clamped."""
    if dtype in NARROW_FLOATS:
        # Zero points of floats are 0 by definition: ONNX Runtime and the reference ignore others of float8.
        if zero and item_bits(dtype) < _BYTE:
            x = builder.emit("add", [x, cast_to(builder, zero, builder.value(x).dtype)])
        return saturate(builder, node, x, dtype)
    if dtype not in _STORED[:-1]:
        raise node.unsupported(f"no quantization to {dtype}")
    limits = {"low": float(finite_limit(dtype, is_least=True)), "high": float(finite_limit(dtype, is_least=False))}
    # Rounded before the zero point is added, as in ONNX: the sum could round a half to another side.
    whole = builder.emit("round", [x])
    if zero:
        whole = builder.emit("add", [whole, cast_to(builder, zero, builder.value(x).dtype)])
    bounded = builder.emit("clip", [whole], limits)
    return builder.emit("cast", [bounded], {"dtype": dtype}, name=node.name, output=node.outputs[0])


def _quantizes_bytes(builder: GraphBuilder, node: OnnxNode, dtype: str) -> bool:
    """Whether the graph has an operator for this: one constant scale, or one per index of an axis."""
    scale = node.operand(builder, 1)
    known = all(builder.is_constant(node.inputs[i]) for i in (1, 2) if node.has_input(i))
    # Passes turn this form into integer layers, see `retune.compiler.graph.passes.quantized`.
    plain = len(scale.shape) <= 1 and scale.dtype == "float32" and not node.integer("block_size", 0)
    return plain and known and dtype in ("int8", "uint8", "int32")


def _of_bytes(builder: GraphBuilder, node: OnnxNode, op: str, dtype: str) -> str:
    x, scale = node.operand(builder, 0), node.operand(builder, 1)
    zero = node.inputs[2] if node.has_input(2) else builder.constant(np.zeros(scale.shape, dtype), "zero")
    axis = node.axis(node.integer("axis", 1), len(x.shape)) if scale.size > 1 else 0
    operands = [x.name, scale.name, zero]
    return builder.emit(op, operands, {"axis": axis}, name=node.name, output=node.outputs[0])


def _element_type(node: OnnxNode, attribute: str) -> str:
    """The element type that an attribute names; "" for 0."""
    number = node.integer(attribute, 0)
    return str(helper.tensor_dtype_to_np_dtype(number).name) if number else ""


def _quantize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    stored = builder.value(node.inputs[2]).dtype if node.has_input(2) else "uint8"
    unsaid = node.has_input(2) or not (node.integer("output_dtype", 0) or node.integer("precision", 0))
    if x.dtype == "float32" and unsaid and stored != "int32" and _quantizes_bytes(builder, node, stored):
        return [_of_bytes(builder, node, "quantize", stored)]
    zero = _align(builder, node, node.inputs[2], x.shape) if node.has_input(2) else ""
    dtype = builder.value(node.inputs[2]).dtype if zero else "uint8"
    if not zero:
        dtype = _element_type(node, "output_dtype") or dtype
    scale = _align(builder, node, node.operand(builder, 1).name, x.shape)
    wide = _element_type(node, "precision") or builder.value(scale).dtype
    wide = sum_type(wide) if is_float(wide) else "float32"
    ratio = builder.emit("true_div", [cast_to(builder, name, wide) for name in (x.name, scale)])
    return [_round(builder, node, ratio, zero, dtype)]


def _offset(builder: GraphBuilder, node: OnnxNode, x: str, zero: str) -> str:
    """x - zero in int32."""
    if builder.value(x).dtype not in _STORED:
        raise node.unsupported(f"no quantized numbers of {builder.value(x).dtype}")
    x = cast_to(builder, x, "int32")
    return builder.emit("sub", [x, cast_to(builder, zero, "int32")]) if zero else x


def _dequantize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    said = _element_type(node, "output_dtype")
    if _quantizes_bytes(builder, node, x.dtype) and said in ("", "float32"):
        return [_of_bytes(builder, node, "dequantize", x.dtype)]
    packed = pack_matrix(builder, node) if x.dtype in NARROW_INTEGERS and said in ("", "float32") else ""
    if packed:
        return [packed]
    scale = _align(builder, node, node.operand(builder, 1).name, x.shape)
    zero = _align(builder, node, node.inputs[2], x.shape) if node.has_input(2) else ""
    dtype = said or builder.value(scale).dtype
    if not is_float(dtype) or not is_float(builder.value(scale).dtype):
        raise node.unsupported("the scale and the result must be floats")
    wide = sum_type(builder.value(scale).dtype)
    if x.dtype in NARROW_FLOATS:
        whole = cast_to(builder, x.name, wide)
    else:
        whole = cast_to(builder, _offset(builder, node, x.name, zero), wide)
    factor = cast_to(builder, scale, wide)
    # A product that joins a sum would be rounded with it on CPUs with multiply-adds; a constant is folded.
    op = "mul" if builder.is_constant(whole) else "rounded_mul"
    product = builder.emit(op, [whole, factor], name=node.name, output=node.outputs[0])
    return [cast_to(builder, product, dtype)]


def _column(builder: GraphBuilder, name: str, *, of_rows: bool) -> str:
    """A zero point or scale of a matrix: a single number, one per row or one per column."""
    shape = builder.value(name).shape
    if builder.value(name).size == 1:
        return builder.emit("reshape", [name], {"shape": ()})
    return builder.emit("reshape", [name], {"shape": (*shape, 1)}) if of_rows and len(shape) == 1 else name


def _byte_product(builder: GraphBuilder, node: OnnxNode) -> str:
    """The product with a constant matrix of bytes, summed from bytes; "" for any other product.

    The first operand's zero point contributes itself times the column sums of the matrix, so it may be computed.
    """
    a, weight = node.operand(builder, 0), builder.array(node.operand(builder, 1).name)
    zero = builder.array(node.inputs[3]) if node.has_input(3) else np.zeros((), np.int8)
    scalar = not node.has_input(2) or builder.value(node.inputs[2]).size == 1
    if weight is None or zero is None or weight.ndim != 2 or len(a.shape) < 2 or not scalar:
        return ""
    numbers = weight.astype(np.int32) - zero.astype(np.int32)
    # They become int8 below; without their zero point, bytes may reach 255 either way.
    if {a.dtype, weight.dtype.name} - {"int8", "uint8"} or abs(numbers).max(initial=0) > 127:
        return ""
    rows = builder.emit("reshape", [a.name], {"shape": (a.size // a.shape[-1], a.shape[-1])})
    whole = builder.emit("qdense", [rows, builder.constant(numbers.astype(np.int8), node.inputs[1])], name=node.name)
    if node.has_input(2):
        start = cast_to(builder, builder.emit("reshape", [node.inputs[2]], {"shape": ()}), "int32")
        # (a - z) W = a W - z (1ᵀ W), exact in int32.
        sums = builder.constant(numbers.sum(axis=0, dtype=np.int32), "sums")
        whole = builder.emit("sub", [whole, builder.emit("mul", [start, sums])])
    return builder.emit("reshape", [whole], {"shape": (*a.shape[:-1], weight.shape[1])}, output=node.outputs[0])


def _matmul_integer(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    product = _byte_product(builder, node)
    if product:
        return [product]
    zeros = [_column(builder, node.inputs[i], of_rows=i == 2) if node.has_input(i) else "" for i in (2, 3)]
    a, b = (_offset(builder, node, node.operand(builder, i).name, zeros[i]) for i in (0, 1))
    return [matrix_product(builder, node, a, b)]


def _dynamic_quantize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """A float as bytes that span its own range and 0, their scale and zero point."""
    write, x = formula_of(builder, node)
    axes = tuple(range(len(builder.value(x).shape)))
    low, high = (write(f"reduce_{end}", x, axes=axes, keepdims=False) for end in ("min", "max"))
    low, high = write("minimum", low, 0), write("maximum", high, 0)
    width = write("sub", high, low)
    scale = write("where", write("equal", width, 0), 1, write("true_div", width, 255))
    zero = write("round", write("clip", write("true_div", write("neg", low), scale), low=0.0, high=255.0))
    whole = write("add", write("round", write("true_div", x, scale)), zero)
    stored = write("cast", write("clip", whole, low=0.0, high=255.0), dtype="uint8")
    return [stored, scale, write("cast", zero, dtype="uint8")]


@dataclass(frozen=True, slots=True)
class Matrix:
    """The second factor of products: floats, or bytes with a scale and a zero point for all or for each column."""

    name: str
    scale: str = ""
    zero: str = ""

    def after(self, builder: GraphBuilder, node: OnnxNode, x: str) -> str:
        """The product of floats with this; those quantized by their own range if this is of bytes."""
        if not self.scale:
            return builder.emit("dense", [x, self.name], name=node.name, output=node.outputs[0])
        stored, scale, zero = _dynamic_quantize(builder, replace(node, inputs=(x,)))
        (whole,) = _matmul_integer(builder, replace(node, inputs=(stored, self.name, zero, self.zero)))
        scale = builder.emit("mul", [scale, _column(builder, self.scale, of_rows=False)])
        return builder.emit("mul", [cast_to(builder, whole, builder.value(scale).dtype), scale])


def _requantize(builder: GraphBuilder, node: OnnxNode, whole: str, scales: Sequence[str], zero: str) -> str:
    """An int32 result times the operands' scales, divided by the result's scale."""
    first, second, made = (cast_to(builder, name, "float32") for name in scales)
    real = builder.emit("mul", [cast_to(builder, whole, "float32"), builder.emit("mul", [first, second])])
    flat = builder.emit("reshape", [zero], {"shape": ()}) if builder.value(zero).size == 1 else zero
    return _round(builder, node, builder.emit("div", [real, made]), flat, builder.value(zero).dtype)


def _fits_bytes(builder: GraphBuilder, x: Sequence[str], weight: Sequence[str]) -> bool:
    """Whether passes compute the product of two quantized operands (numbers, scale, zero point) from bytes, exactly."""
    known = [builder.array(name) for name in (*x[1:], *weight)]
    if any(array is None for array in known) or any(builder.value(name).size > 1 for name in x[1:]):
        return False
    dtypes = {builder.value(name).dtype for name in (x[0], weight[0])}
    numbers, zero = (known[index] for index in (2, 4))
    if dtypes - {"int8", "uint8"} or numbers is None or zero is None:
        return False
    most, least = int(numbers.max(initial=0)) - int(zero.min()), int(numbers.min(initial=0)) - int(zero.max())
    return bool(numbers.size and most <= 127 and least >= -128)


def _real(builder: GraphBuilder, node: OnnxNode, operand: Sequence[str], axis: int = 0) -> str:
    """The numbers of a quantized operand: numbers, scale and zero point."""
    (real,) = _dequantize(builder, replace(node, inputs=tuple(operand), attributes={"axis": axis}))
    return real


def _with_scale(builder: GraphBuilder, node: OnnxNode, real: str) -> Sequence[str]:
    """A result by the last scale and zero point of a QLinear product."""
    return _quantize(builder, replace(node, inputs=(real, *node.inputs[6:8]), attributes={}))


def _qlinear_matmul(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    a, b = (node.inputs[first : first + 3] for first in (0, 3))
    if len(node.operand(builder, 3).shape) == 2 and _fits_bytes(builder, a, b):
        left, right = _real(builder, node, a), _real(builder, node, b, 1)
        return _with_scale(builder, node, matrix_product(builder, node, left, right))
    return _qlinear_product(builder, node)


def _qlinear_product(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    columns = [_column(builder, node.operand(builder, i).name, of_rows=i in (1, 2)) for i in (1, 2, 4, 5, 6)]
    a = _offset(builder, node, node.operand(builder, 0).name, columns[1])
    b = _offset(builder, node, node.operand(builder, 3).name, columns[3])
    whole = matrix_product(builder, node, a, b)
    return [_requantize(builder, node, whole, (columns[0], columns[2], columns[4]), node.inputs[7])]


def _weight_column(builder: GraphBuilder, name: str, rank: int) -> str:
    size = builder.value(name).size
    return builder.emit("reshape", [name], {"shape": () if size == 1 else (size, *(1 for _ in range(rank - 1)))})


def _conv_integer(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, w = node.operand(builder, 0), node.operand(builder, 1)
    zeros = [_weight_column(builder, node.inputs[i], len(w.shape)) if node.has_input(i) else "" for i in (2, 3)]
    left, right = _offset(builder, node, x.name, zeros[0]), _offset(builder, node, w.name, zeros[1])
    return [convolved(builder, node, left, right)]


def _bias_of(builder: GraphBuilder, node: OnnxNode, bias: str) -> str:
    """The numbers of a bias, whose scale is the product of those of the factors."""
    scale = builder.emit("mul", [builder.emit("reshape", [node.inputs[1]], {"shape": ()}), node.inputs[4]])
    zero = builder.constant(np.zeros(builder.value(scale).shape, "int32"), "zero")
    return _real(builder, node, (bias, scale, zero), 1)


def _qlinear_conv(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, w = node.operand(builder, 0), node.operand(builder, 3)
    rank = len(w.shape)
    first, second = node.inputs[:3], node.inputs[3:6]
    if rank in (3, 4) and _fits_bytes(builder, first, second):
        real = convolved(builder, node, _real(builder, node, first), _real(builder, node, second))
        if node.has_input(8):
            bias = _bias_of(builder, node, as_channels(builder, node.inputs[8], rank))
            real = builder.emit("add", [real, bias])
        return _with_scale(builder, node, real)
    left = _offset(builder, node, x.name, _weight_column(builder, node.inputs[2], rank))
    right = _offset(builder, node, w.name, _weight_column(builder, node.inputs[5], rank))
    whole = convolved(builder, node, left, right)
    if node.has_input(8):
        whole = builder.emit("add", [whole, as_channels(builder, node.inputs[8], rank)])
    scales = [_weight_column(builder, node.inputs[i], rank) for i in (1, 4, 6)]
    if builder.value(scales[1]).size > 1:
        scales[1] = as_channels(builder, node.inputs[4], rank)
    return [_requantize(builder, node, whole, scales, node.inputs[7])]


CONVERTERS: Mapping[str, Converter] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
