"""Converters of contributed normalizations, with the sums and embeddings before them. Halves compute in float32."""

from collections.abc import Mapping

from retune.compiler.core.dtype import HALVES
from retune.compiler.frontend.ops.contributed.fused import channels_first, channels_last
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.frontend.ops.standard import STANDARD, Composition, compose

_EPSILON = 1e-12


def _wide(write: Composition, x: str) -> str:
    """`x` in float32 if it is a half: a sum of squares soon exceeds the largest float16."""
    return write("cast", x, dtype="float32") if x and write.dtype(x) in HALVES else x


def _skip_normalization(write: Composition) -> list[str]:
    """The norm of the sum of input, skip and bias, then mean and deviation if wanted, and the sum."""
    is_simple = write.node.op_type == "SkipSimplifiedLayerNormalization"
    beta, bias = ("", write.operand(3)) if is_simple else (write.operand(3), write.operand(4))
    dtype = write.dtype(write.node.inputs[0])
    x, skip, gamma = (_wide(write, name) for name in write.node.inputs[:3])
    total = write("Add", x, skip)
    total = write("Add", total, _wide(write, bias)) if bias else total
    epsilon = write.node.number("epsilon", _EPSILON)
    if is_simple:
        result, deviation = write.results("RMSNormalization", total, gamma, epsilon=epsilon)
        return [write.cast(result, dtype), "", deviation, write.cast(total, dtype)]
    result, *statistics = _layer_norm(write, total, gamma, _wide(write, beta), epsilon)
    return [write.cast(result, dtype), *statistics, write.cast(total, dtype)]


def _layer_norm(write: Composition, x: str, gamma: str, beta: str, epsilon: float) -> list[str]:
    """The norm over the last axis, with mean and deviation if the node has such results."""
    result, *statistics = write.results("LayerNormalization", x, gamma, beta, epsilon=epsilon)
    return [result, *(statistics or ["", ""])]


def _embed(write: Composition) -> list[str]:
    """The norm of the sum of the embeddings of words, positions and segments; the lengths of the mask; the sum."""
    words, segments = write.operand(0), write.operand(1)
    batch, length = write.shape(words)
    total = write("Gather", write.operand(2), words)
    places, positions = write.operand(3), write.operand(8)
    if positions:
        total = write("Add", total, write("Gather", places, positions))
    else:
        total = write("Add", total, write("Gather", places, write.builder.arange(length)))
    if segments:
        total = write("Add", total, write("Gather", write.operand(4), segments))
    return [*_norm_of_embedding(write, total, write.operand(5), write.operand(6)), _lengths(write, batch), total]


def _norm_of_embedding(write: Composition, total: str, gamma: str, beta: str) -> list[str]:
    gamma, beta = _wide(write, gamma), _wide(write, beta)
    result, *_ = _layer_norm(write, _wide(write, total), gamma, beta, write.node.number("epsilon", _EPSILON))
    return [write.cast(result, write.dtype(total))]


def _lengths(write: Composition, batch: int) -> str:
    """The number of leading tokens that the mask keeps, 0 without a mask: (B,) of int32."""
    mask = write.operand(7)
    if not mask:
        return write.builder.filled(0, "int32", (batch,))
    kept = write("reduce_sum", write("cast", mask, dtype="int32"), axes=(1,), keepdims=False)
    return write("reshape", kept, shape=(batch,))


def _quantized_embedded(write: Composition) -> list[str]:
    """The same with dequantized weights."""
    weights = {}
    for index, name in enumerate(write.node.inputs[2:7], 2):
        if name:
            weights[index] = write("DequantizeLinear", name, write.operand(index + 6), write.operand(index + 11))
    words, segments = write.operand(0), write.operand(1)
    batch, length = write.shape(words)
    total = write("Add", write("Gather", weights[2], words), write("Gather", weights[3], write.builder.arange(length)))
    if segments:
        total = write("Add", total, write("Gather", weights[4], segments))
    return [*_norm_of_embedding(write, total, weights[5], weights[6]), _lengths(write, batch)]


def _group_normalization(write: Composition) -> list[str]:
    """The norm of groups of channels, by default the last axis, of x or of the sum of x, skip and bias."""
    node, x = write.node, write.operand(0)
    dtype, last = write.dtype(x), bool(node.integer("channels_last", 1))
    total = _wide(write, x)
    if node.op_type == "SkipGroupNorm":
        skip, bias = write.operand(3), write.operand(4)
        if len(write.shape(skip)) == 2:
            n, channels = write.shape(skip)
            skip = write("reshape", skip, shape=(n, 1, 1, channels) if last else (n, channels, 1, 1))
        total = write("Add", total, _wide(write, skip))
        if bias:
            column = (-1,) if last else (-1, 1, 1)
            total = write("Add", total, _wide(write, write("Reshape", bias, column)))
    first = channels_first(write, total) if last else total
    gamma, beta = (write("cast", write.operand(index), dtype="float32") for index in (1, 2))
    attributes = {"num_groups": node.integer("groups", 1), "epsilon": node.number("epsilon", 1e-5)}
    result = write("GroupNormalization", first, write.cast(gamma, write.dtype(first)), beta, **attributes)
    activation = node.integer("activation", 0)
    if activation not in (0, 1):
        raise node.unsupported(f"activation {activation} is neither 0 nor 1")
    result = write("Mul", result, write("Sigmoid", result)) if activation else result
    result = channels_last(write, result) if last else result
    return [write.cast(result, dtype), write.cast(total, dtype)]


CONVERTERS: Mapping[str, Converter] = {
    "EmbedLayerNormalization": compose(_embed),
    "GroupNorm": compose(_group_normalization),
    "LayerNormalization": STANDARD["LayerNormalization"],
    "QEmbedLayerNormalization": compose(_quantized_embedded),
    "SimplifiedLayerNormalization": STANDARD["RMSNormalization"],
    "SkipGroupNorm": compose(_group_normalization),
    "SkipLayerNormalization": compose(_skip_normalization),
    "SkipSimplifiedLayerNormalization": compose(_skip_normalization),
}
"""LayerNormalization before operator set 17 and SimplifiedLayerNormalization are ONNX Runtime's own."""
