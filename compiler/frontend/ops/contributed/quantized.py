"""Converters of contributed quantized operators.

Products sum in int32, exactly. Everything else is ONNX's operator between DequantizeLinear and QuantizeLinear: passes
turn that into arithmetic of bytes, see `retune.compiler.graph.passes.quantized`.
"""

from collections.abc import Callable, Mapping

import numpy as np

from retune.compiler.core.dtype import sum_type
from retune.compiler.frontend.ops.contributed.fused import channels_first, channels_last, softmax_of_rows
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.frontend.ops.loops.recurrent_bytes import dynamic_quantize_lstm
from retune.compiler.frontend.ops.quantized import Matrix
from retune.compiler.frontend.ops.standard import STANDARD, Composition, Definition, compose


def _real(write: Composition, first: int) -> str:
    """The numbers of operand `first`, whose scale and zero point follow."""
    return write("DequantizeLinear", *(write.operand(index) for index in range(first, first + 3)))


def _narrow(write: Composition, x: str, first: int, dtype: str) -> str:
    """`x` quantized by the scale and the zero point that are operands from `first` on."""
    zero = write.operand(first + 1) or write.builder.constant(np.zeros((), dtype), "zero")
    return write("QuantizeLinear", x, write.operand(first), zero)


def _between(define: Callable[[Composition, str], str]) -> Definition:
    """An operator of one quantized operand: X, its scale and zero point, those of the result."""

    def between(write: Composition) -> str:
        return _narrow(write, define(write, _real(write, 0)), 3, write.dtype(write.operand(0)))

    return between


def _binary(op: str) -> Definition:
    def binary(write: Composition) -> str:
        result = write(op, _real(write, 0), _real(write, 3))
        return _narrow(write, result, 6, write.dtype(write.operand(0)))

    return binary


def _leaky_relu(write: Composition, x: str) -> str:
    return write("LeakyRelu", x, alpha=write.node.number("alpha", 0.01))


def _softmax(write: Composition, x: str) -> str:
    axis, rank = write.node.integer("axis", -1), len(write.shape(x))
    if write.node.integer("opset", 13) < 13:
        return softmax_of_rows(write, x, write.node.axis(axis, rank))
    return write("Softmax", x, axis=axis)


def _reduce_mean(write: Composition, x: str) -> str:
    attributes = {"axes": write.node.ints("axes"), "keepdims": write.node.integer("keepdims", 1)}
    return write("ReduceMean", x, **attributes)


def _pool(op: str) -> Callable[[Composition, str], str]:
    def pool(write: Composition, x: str) -> str:
        last = bool(write.node.integer("channels_last", 0))
        x = write(op, channels_first(write, x) if last else x, **write.node.attributes)
        return channels_last(write, x) if last else x

    return pool


def _concat(write: Composition) -> str:
    parts = [_real(write, first) for first in range(2, len(write.node.inputs), 3)]
    return _narrow(write, write("Concat", *parts, axis=write.node.integer("axis", 0)), 0, write.dtype(write.operand(2)))


def _where(write: Composition) -> str:
    chosen = write("Where", write.operand(0), _real(write, 1), _real(write, 4))
    return _narrow(write, chosen, 7, write.dtype(write.operand(1)))


def _convolution(write: Composition) -> str:
    x, *others = write.node.inputs
    if not write.node.integer("channels_last", 0):
        return write("QLinearConv", x, *others, **write.node.attributes)
    return channels_last(write, write("QLinearConv", channels_first(write, x), *others, **write.node.attributes))


def scale_product(write: Composition, whole: str, scales: tuple[str, str], bias: str) -> str:
    """Integers times the scale of the first factor and that of the second, plus a bias; in float32."""
    dtype = write.dtype(scales[1])
    first, second = (write.cast(name, sum_type(dtype)) for name in scales)
    scale = write("Mul", write("reshape", first, shape=()), second)
    real = write("Mul", write("cast", whole, dtype=sum_type(dtype)), scale)
    real = write("Add", real, write.cast(bias, sum_type(dtype))) if bias else real
    return write.cast(real, dtype)


def _integer_product(write: Composition) -> str:
    """A and B, their scales, their zero points, and a bias."""
    whole = write("MatMulInteger", *write.node.inputs[:2], write.operand(4), write.operand(5))
    return scale_product(write, whole, (write.operand(2), write.operand(3)), write.operand(6))


def _dynamic_product(write: Composition) -> str:
    """A product with A quantized by its own range: A, B, its scale and zero point, and a bias."""
    a, b, scale, zero, bias = (write.operand(index) for index in range(5))
    product = Matrix(b, scale, zero).after(write.builder, write.node, a)
    return write("Add", product, bias) if bias else product


def _gemm(write: Composition) -> str:
    """alpha * A B + C, of integers if the result has a scale."""
    a, b = (write.operand(index) for index in (0, 3))
    a = write("transpose", a, perm=(1, 0)) if write.node.integer("transA", 0) else a
    b = write("transpose", b, perm=(1, 0)) if write.node.integer("transB", 0) else b
    whole = write("MatMulInteger", a, b, write.operand(2), write.operand(5))
    whole = write("Add", whole, write.operand(6)) if write.operand(6) else whole
    scale, alpha = write.operand(1), write.node.number("alpha", 1.0)
    scale = scale if alpha == 1.0 else write("Mul", scale, alpha)
    real = scale_product(write, whole, (scale, write.operand(4)), "")
    return _narrow(write, real, 7, write.dtype(a)) if write.operand(7) else real


def _wide_product(write: Composition) -> str:
    """A product of int16, summed in int32."""
    return write("MatMul", *(write("cast", name, dtype="int32") for name in write.node.inputs[:2]))


_DEFINITIONS: Mapping[str, Definition] = {
    "DynamicQuantizeMatMul": _dynamic_product,
    "MatMulInteger16": _wide_product,
    "MatMulIntegerToFloat": _integer_product,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _between(_pool("AveragePool")),
    "QLinearConcat": _concat,
    "QLinearConv": _convolution,
    "QLinearGlobalAveragePool": _between(_pool("GlobalAveragePool")),
    "QLinearLeakyRelu": _between(_leaky_relu),
    "QLinearMul": _binary("Mul"),
    "QLinearReduceMean": _between(_reduce_mean),
    "QLinearSigmoid": _between(lambda write, x: write("Sigmoid", x)),
    "QLinearSoftmax": _between(_softmax),
    "QLinearWhere": _where,
}

CONVERTERS: Mapping[str, Converter] = {
    **{name: compose(define) for name, define in _DEFINITIONS.items()},
    "DequantizeLinear": STANDARD["DequantizeLinear"],
    "DynamicQuantizeLSTM": dynamic_quantize_lstm,
    "QuantizeLinear": STANDARD["QuantizeLinear"],
}
