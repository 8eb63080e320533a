"""Converters of ONNX comparisons, selections and bitwise operators. Conditions have dtype bool."""

from collections.abc import Mapping, Sequence
from math import inf

from retune.compiler.core.dtype import is_float, is_unsigned
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, formula_of, same
from retune.compiler.graph.builder import GraphBuilder


def _swap(op: str) -> Converter:
    """a > b is b < a."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, a = formula_of(builder, node)
        return [write(op, node.operand(builder, 1).name, a)]

    return convert


def _mod(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, a = formula_of(builder, node)
    return [write("fmod" if node.integer("fmod", 0) else "mod", a, node.operand(builder, 1).name)]


def _bit_shift(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, a = formula_of(builder, node)
    direction = node.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise node.unsupported(f"direction {direction!r} is neither LEFT nor RIGHT")
    return [write(f"shift_{direction.lower()}", a, node.operand(builder, 1).name)]


def _is_inf(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    if not is_float(builder.value(x).dtype):
        raise node.unsupported("only floats can be infinite")
    signs = [sign for sign in ("negative", "positive") if node.integer(f"detect_{sign}", 1)]
    tests = [write("equal", x, -inf if sign == "negative" else inf) for sign in signs]
    # No sign is selected: false everywhere, also for NaN, which is not less than itself.
    if not tests:
        return [write("less", x, x)]
    return [tests[0] if len(tests) == 1 else write("bit_or", *tests)]


def _shrink(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    bound, bias = node.number("lambd", 0.5), node.number("bias", 0.0)
    if bound < 0:
        raise node.unsupported("a negative lambd")
    above = write("where", write("less", bound, x), write("sub", x, bias), 0)
    if is_unsigned(builder.value(x).dtype):
        return [above]
    return [write("where", write("less", x, -bound), write("add", x, bias), above)]


def _thresholded_relu(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    above = write("less", node.number("alpha", 1.0), x)
    return [write("where", above, x, 0.0)]


CONVERTERS: Mapping[str, Converter] = {
    "And": same("bit_and"),
    "BitShift": _bit_shift,
    "BitwiseAnd": same("bit_and"),
    "BitwiseNot": same("bit_not"),
    "BitwiseOr": same("bit_or"),
    "BitwiseXor": same("bit_xor"),
    "Equal": same("equal"),
    "Greater": _swap("less"),
    "GreaterOrEqual": _swap("less_equal"),
    "IsInf": _is_inf,
    "IsNaN": same("is_nan"),
    "Less": same("less"),
    "LessOrEqual": same("less_equal"),
    "Mod": _mod,
    "Not": same("bit_not"),
    "Or": same("bit_or"),
    "Shrink": _shrink,
    "ThresholdedRelu": _thresholded_relu,
    "Where": same("where"),
    "Xor": same("bit_xor"),
}
