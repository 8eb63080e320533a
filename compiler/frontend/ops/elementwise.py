"""Converters of element-wise ONNX operators. A converter returns one value for each output of its node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import inf, sqrt
from typing import Any

import numpy as np
from onnx import helper

from retune.compiler.core.dtype import HALVES, NARROW, NARROW_FLOATS, arithmetic_type, finite_limit, is_float
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.graph.builder import GraphBuilder

Converter = Callable[[GraphBuilder, OnnxNode], Sequence[str]]

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *NARROW,
)
"""Element types of kernels."""


class Formula:
    """Writes arithmetic on values of one dtype; Python numbers become scalar constants."""

    def __init__(self, builder: GraphBuilder, node: OnnxNode, dtype: str) -> None:
        self._builder = builder
        self._node = node
        self._dtype = dtype

    def __call__(self, op: str, *operands: str | float, **attrs: Any) -> str:
        names = [self._builder.scalar(o, self._dtype) if isinstance(o, int | float) else o for o in operands]
        return self._builder.emit(op, names, attrs, name=self._node.name, output=self._node.outputs[0])


def formula_of(builder: GraphBuilder, node: OnnxNode) -> tuple[Formula, str]:
    """A formula writer in the dtype of the first operand, and that operand."""
    x = node.operand(builder, 0)
    return Formula(builder, node, x.dtype), x.name


def in_float32(convert: Converter) -> Converter:
    """A converter that computes halves in float32 and rounds its first result, as ONNX Runtime does: squares and sums
    may exceed the largest float16 though the result does not.
    """

    def convert_wide(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        dtype = node.operand(builder, 0).dtype
        halves = {name for name in node.inputs if name and builder.value(name).dtype in HALVES}
        if dtype not in HALVES:
            return convert(builder, node)
        inputs = tuple(cast_to(builder, name, "float32") if name in halves else name for name in node.inputs)
        result, *others = convert(builder, replace(node, inputs=inputs))
        return [cast_to(builder, result, dtype, node.name, node.outputs[0]), *others]

    return convert_wide


def same(op: str) -> Converter:
    """A converter to one of our operators with the same operands."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        node.operand(builder, 0)
        return [builder.emit(op, node.inputs, name=node.name, output=node.outputs[0])]

    return convert


def _variadic(op: str) -> Converter:
    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, _ = formula_of(builder, node)
        return [reduce(lambda a, b: write(op, a, b), node.inputs)]

    return convert


def _sum(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    convert = _variadic("add")
    return (in_float32(convert) if len(node.inputs) > 2 else convert)(builder, node)


def _mean(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, _ = formula_of(builder, node)
    return [write("div", reduce(lambda a, b: write("add", a, b), node.inputs), len(node.inputs))]


def _pow(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    exponent = node.operand(builder, 1)
    constant = builder.array(exponent.name)
    if constant is not None and constant.size == 1 and len(exponent.shape) <= len(builder.value(x).shape):
        power = float(constant.item())
        # Squares and roots are common in normalizations: one instruction instead of a call.
        if power == 2.0:
            return [write("mul", x, x)]
        if power == 0.5 and is_float(builder.value(x).dtype):
            return [write("sqrt", x)]
        if power == 1.0:
            return [x]
    if not is_float(builder.value(x).dtype):
        # ONNX Runtime computes powers of integers as doubles, too; exact up to 2^53.
        wide = [write("cast", name, dtype="float64") for name in (x, exponent.name)]
        return [write("cast", write("pow", *wide), dtype=builder.value(x).dtype)]
    if exponent.dtype != builder.value(x).dtype:
        return [write("pow", x, write("cast", exponent.name, dtype=builder.value(x).dtype))]
    return [write("pow", x, exponent.name)]


def _clip(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    bounds = [node.inputs[i] if node.has_input(i) else "" for i in (1, 2)]
    arrays = [builder.array(bound) if bound else None for bound in bounds]
    low, high = (float(array.item()) if array is not None else None for array in arrays)
    floating = is_float(builder.value(x).dtype)
    if floating and low is not None and high is not None and np.isfinite([low, high]).all():
        return [write("clip", x, low=low, high=high)]
    # Known to the passes, with one operand less.
    if floating and low == 0.0 and (high == inf or not bounds[1]):
        return [write("relu", x)]
    if bounds[0]:
        x = write("maximum", x, bounds[0])
    return [write("minimum", x, bounds[1]) if bounds[1] else x]


def _leaky_relu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("leaky_relu", x, alpha=node.number("alpha", 0.01))]


def _prelu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    slope, shape = node.operand(builder, 1).name, builder.value(x).shape
    own = builder.value(slope).shape
    if (
        len(own) == 1 and own[0] not in (1, *shape[-1:]) and own == shape[1:2]
    ):  # one number per channel, as in old operator sets
        slope = write("reshape", slope, shape=(own[0], *(1 for _ in shape[2:])))
    # Without a condition: both halves vanish on the other side of zero.
    return [write("add", write("relu", x), write("mul", slope, write("minimum", x, 0)))]


def _exponential_branch(write: Formula, x: str, alpha: float) -> str:
    """alpha * (exp(min(x, 0)) - 1), which is 0 where x is positive."""
    return write("mul", write("sub", write("exp", write("minimum", x, 0)), 1), alpha)


def _elu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("add", write("relu", x), _exponential_branch(write, x, node.number("alpha", 1.0)))]


def _selu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    # ONNX's defaults: the constants of Klambauer et al. (arXiv 1706.02515), written out as float32.
    alpha, gamma = node.number("alpha", 1.67326319217681884765625), node.number("gamma", 1.05070102214813232421875)
    return [write("mul", write("add", write("relu", x), _exponential_branch(write, x, alpha)), gamma)]


def _hard_sigmoid(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    line = write("add", write("mul", x, node.number("alpha", 0.2)), node.number("beta", 0.5))
    return [write("clip", line, low=0.0, high=1.0)]


def _hard_swish(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("mul", x, write("clip", write("add", write("mul", x, 1 / 6), 0.5), low=0.0, high=1.0))]


def _swish(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    alpha = node.number("alpha", 1.0)
    return [write("mul", x, write("sigmoid", x if alpha == 1.0 else write("mul", x, alpha)))]


def _celu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    alpha = node.number("alpha", 1.0)
    below = write("minimum", x, 0)
    branch = write("mul", write("sub", write("exp", write("div", below, alpha)), 1), alpha)
    return [write("add", write("relu", x), branch)]


def _softsign(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("div", x, write("add", write("abs", x), 1))]


def _gelu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    if node.text("approximate", "none") == "tanh":
        # The approximation of Hendrycks and Gimpel (arXiv 1606.08415).
        cubed = write("mul", write("mul", x, x), x)
        inner = write("mul", write("add", x, write("mul", cubed, 0.044715)), sqrt(2 / np.pi))
        gate = write("tanh", inner)
    else:
        gate = write("erf", write("mul", x, sqrt(0.5)))
    return [write("mul", write("mul", x, 0.5), write("add", gate, 1))]


def _mish(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("mul", x, write("tanh", write("softplus", x)))]


def _reciprocal(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    return [write("div", 1, x)]


_POWERS = "float8_e8m0fnu"
"""Powers of two, which alone have rounding modes."""


def cast_to(builder: GraphBuilder, x: str, dtype: str, name: str = "", output: str = "") -> str:
    """`x` in another element type; `x` itself if it has that type."""
    if builder.value(x).dtype == dtype:
        return x
    return builder.emit("cast", [x], {"dtype": dtype}, name=name, output=output)


def _cast_to(builder: GraphBuilder, node: OnnxNode, dtype: str) -> Sequence[str]:
    if dtype not in DTYPES:
        raise node.unsupported(f"no conversion to {dtype}")
    x = node.operand(builder, 0)
    if dtype == _POWERS and x.dtype != dtype:
        return [_power_of_two(builder, node, x.name)]
    return [saturate(builder, node, x.name, dtype)]


def saturate(builder: GraphBuilder, node: OnnxNode, x: str, dtype: str) -> str:
    """`x` as `dtype`: what a narrow float cannot hold becomes its largest number, if the node's `saturate` says so."""
    if dtype in NARROW_FLOATS and dtype != _POWERS and node.integer("saturate", 1):
        wide = arithmetic_type(builder.value(x).dtype)
        limits = {"low": finite_limit(dtype, is_least=True), "high": finite_limit(dtype, is_least=False)}
        x = builder.emit("clip", [cast_to(builder, x, wide if is_float(wide) else "float32")], limits)
    return cast_to(builder, x, dtype, node.name, node.outputs[0])


def _power_of_two(builder: GraphBuilder, node: OnnxNode, x: str) -> str:
    """The exponent of a float's magnitude, rounded as the node's `round_mode` says."""
    write = Formula(builder, node, "int32")
    bits = builder.emit("bits", [cast_to(builder, x, "float32")], {"dtype": "int32"})
    magnitude = write("bit_and", bits, 0x7FFFFFFF)
    mode = node.text("round_mode", "up")
    if mode not in ("up", "down", "nearest"):
        raise node.unsupported(f"the rounding {mode!r}")
    # The fraction has 23 bits; a tie goes up unless the number is subnormal, as ONNX defines it.
    rounding: str | float = {"up": 0x7FFFFF, "down": 0}.get(mode, 0)
    if mode == "nearest":
        is_normal = cast_to(builder, write("less", 0x7FFFFF, magnitude), "int32")
        rounding = write("add", is_normal, 0x3FFFFF)
    code = write("shift_right", write("add", magnitude, rounding), 23)
    if node.integer("saturate", 1):
        code = write("minimum", code, 0xFE)
    code = write("where", write("less", magnitude, 0x7F800000), code, 0xFF)
    return write("bits", cast_to(builder, code, "uint8"), dtype=_POWERS)


def _cast(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return _cast_to(builder, node, helper.tensor_dtype_to_np_dtype(node.integer("to", 1)).name)


def _bit_cast(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, dtype = node.operand(builder, 0), helper.tensor_dtype_to_np_dtype(node.integer("to", 1)).name
    if dtype not in DTYPES:
        raise node.unsupported(f"no elements of {dtype}")
    return [x.name if x.dtype == dtype else builder.emit("bits", [x.name], {"dtype": dtype}, name=node.name)]


_SAME = (
    *("Abs", "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Div", "Erf", "Exp"),
    *("Floor", "Log", "Mul", "Neg", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Sqrt", "Sub"),
    *("Tan", "Tanh"),
)
"""Operators that graphs have by these names, in lower case."""
CONVERTERS: Mapping[str, Converter] = {
    **{name: same(name.lower()) for name in _SAME},
    "BitCast": _bit_cast,
    "Cast": _cast,
    "CastLike": lambda builder, node: _cast_to(builder, node, node.operand(builder, 1).dtype),
    "Celu": in_float32(_celu),
    "Clip": _clip,
    "Elu": in_float32(_elu),
    "Gelu": _gelu,
    "HardSigmoid": in_float32(_hard_sigmoid),
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Max": _variadic("maximum"),
    "Mean": in_float32(_mean),
    "Min": _variadic("minimum"),
    "Mish": in_float32(_mish),
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Selu": in_float32(_selu),
    "Softsign": in_float32(_softsign),
    "Sum": _sum,
    "Swish": _swish,
}
