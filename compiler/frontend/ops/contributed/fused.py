"""Converters of contributed products, convolutions and activations, which fuse standard operators."""

from collections.abc import Mapping

from retune.compiler.frontend.ops.elementwise import Converter, in_float32
from retune.compiler.frontend.ops.standard import Composition, Definition, compose

_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("", "HardSwish", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    "Clip": ("low", "high"),
    "HardSigmoid": ("alpha", "beta"),
}
"""Names of the activations that products and convolutions fuse, with their parameters in order."""


def activate(write: Composition, x: str) -> str:
    """`x` through the activation that the node's attributes name."""
    node = write.node
    name = node.text("activation", "")
    if name not in _ACTIVATIONS:
        raise node.unsupported(f"activation {name!r} is unknown; known: {', '.join(filter(None, _ACTIVATIONS))}")
    if not name:
        return x
    keys = _ACTIVATIONS[name]
    numbers = node.numbers("activation_params")
    if not numbers:
        named = ((key, f"activation_{key}") for key in keys)
        parameters = {key: node.number(name, 0.0) for key, name in named if name in node.attributes}
    elif len(numbers) == len(keys):
        parameters = dict(zip(keys, numbers, strict=True))
    else:
        raise node.unsupported(f"activation {name!r} has {len(numbers)} parameters")
    if name == "Clip":
        return write("Clip", x, parameters["low"], parameters["high"])
    return write(name, x, **parameters)


def channels_first(write: Composition, x: str) -> str:
    """(N, ..., C) as (N, C, ...)."""
    rank = len(write.shape(x))
    return write("transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(write: Composition, x: str) -> str:
    """(N, C, ...) as (N, ..., C)."""
    return write("transpose", x, perm=(0, *range(2, len(write.shape(x))), 1))


def _fused_conv(write: Composition) -> str:
    x = write("Conv", *write.node.inputs[:3], **write.node.attributes)
    return activate(write, write("Add", x, write.operand(3)) if write.operand(3) else x)


def _nhwc_conv(write: Composition) -> str:
    """Its kernels have the channels last, too; those of NhwcFusedConv do not."""
    x, kernel, *others = write.node.inputs
    x = channels_first(write, x)
    if write.node.op_type == "NhwcConv":
        kernel = channels_first(write, kernel)
    x = write("Conv", x, kernel, *others[:1], **write.node.attributes)
    if write.operand(3):
        x = write("Add", x, channels_first(write, write.operand(3)))
    return channels_last(write, activate(write, x))


def _nhwc_max_pool(write: Composition) -> str:
    x = channels_first(write, write.node.inputs[0])
    return channels_last(write, write("MaxPool", x, **write.node.attributes))


def _fused_gemm(write: Composition) -> str:
    return activate(write, write("Gemm", *write.node.inputs, **write.node.attributes))


def _fused_matmul(write: Composition) -> str:
    factors = []
    for name, side in zip(write.node.inputs[:2], "AB", strict=True):
        rank = len(write.shape(name))
        order = list(range(rank))
        if write.node.integer(f"transBatch{side}", 0) and rank > 2:
            # The first dimension moves behind the other dimensions of the batch.
            order = [*order[1:-1], 0, rank - 1]
        if write.node.integer(f"trans{side}", 0) and rank > 1:
            order[-2:] = reversed(order[-2:])
        factors.append(name if order == sorted(order) else write("transpose", name, perm=tuple(order)))
    product, alpha = write("MatMul", *factors), write.node.number("alpha", 1.0)
    return activate(write, product if alpha == 1.0 else write("mul", product, alpha))


def _bias_gelu(write: Composition) -> str:
    return write("Gelu", write("Add", *write.node.inputs))


def _fast_gelu(write: Composition) -> str:
    x, bias = write.node.inputs[0], write.operand(1)
    return write("Gelu", write("Add", x, bias) if bias else x, approximate="tanh")


def _gemm_fast_gelu(write: Composition) -> str:
    x, bias = write("MatMul", *write.node.inputs[:2]), write.operand(2)
    return write("Gelu", write("Add", x, bias) if bias else x, approximate="tanh")


def _quick_gelu(write: Composition) -> str:
    return write("Swish", write.node.inputs[0], alpha=write.node.number("alpha", 1.702))


def _bias_split_gelu(write: Composition) -> str:
    x = write("Add", *write.node.inputs)
    left, right = write.results("Split", x, axis=-1, num_outputs=2)
    return write("Mul", left, write("Gelu", right))


def _bias_add(write: Composition) -> str:
    x, bias, skip = write.node.inputs
    return write("Add", write("Add", x, bias), skip)


def softmax_of_rows(write: Composition, x: str, axis: int) -> str:
    """The softmax over all dimensions from the axis on, as before operator set 13."""
    shape = write.shape(x)
    if axis == len(shape) - 1:
        return write("Softmax", x, axis=axis)
    total = 1
    for extent in shape[axis:]:
        total *= extent
    x = write("Softmax", write("reshape", x, shape=(*shape[:axis], total)), axis=axis)
    return write("reshape", x, shape=shape)


def _bias_softmax(write: Composition) -> str:
    x = write("Add", *write.node.inputs)
    return softmax_of_rows(write, x, write.node.axis(write.node.integer("axis", 1), len(write.shape(x))))


def _bias_dropout(write: Composition) -> list[str]:
    x, residual = write("Add", *write.node.inputs[:2]), write.operand(2)
    x, *mask = write.results("Dropout", x, *write.node.inputs[3:])
    return [write("Add", x, residual) if residual else x, *mask]


def _scaled_silu(write: Composition) -> str:
    x, scale = write.node.inputs[0], write.operand(1)
    factor = write("reshape", scale, shape=()) if scale else write.node.number("alpha", 1.0)
    x = write("Mul", x, write("Cast", factor, to=_FLOATS[write.dtype(x)]) if isinstance(factor, str) else factor)
    return write("Mul", x, write("Sigmoid", x))


_FLOATS = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}
"""ONNX's numbers of element types."""

_DEFINITIONS: Mapping[str, Definition] = {
    "BiasAdd": _bias_add,
    "BiasDropout": _bias_dropout,
    "BiasGelu": _bias_gelu,
    "BiasSoftmax": _bias_softmax,
    "BiasSplitGelu": _bias_split_gelu,
    "FastGelu": _fast_gelu,
    "Gelu": lambda write: write("Gelu", write.node.inputs[0]),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "GemmFastGelu": _gemm_fast_gelu,
    "NhwcConv": _nhwc_conv,
    "NhwcFusedConv": _nhwc_conv,
    "NhwcMaxPool": _nhwc_max_pool,
    "QuickGelu": _quick_gelu,
    "ScaledSiLU": _scaled_silu,
    "TransposeMatMul": _fused_matmul,
}

_WIDENED = ("BiasGelu", "BiasSoftmax", "BiasSplitGelu", "FastGelu", "QuickGelu")
"""Operators that compute halves in float32 and round the result."""

CONVERTERS: Mapping[str, Converter] = {
    name: in_float32(compose(define)) if name in _WIDENED else compose(define) for name, define in _DEFINITIONS.items()
}
