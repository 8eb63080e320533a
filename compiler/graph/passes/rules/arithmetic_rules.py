"""Rewrite rules of arithmetic nodes: each returns a cheaper equal value, or None. Shapes and dtypes stay the same."""

import math

import numpy as np

from retune.compiler.core.dtype import is_float
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Node
from retune.compiler.ir.dims import Dim
from retune.compiler.ops import OPS, FusionKind
from retune.compiler.ops.op import broadcast_shapes

_COMMUTATIVE = ("add", "mul", "maximum", "minimum")
_MERGING = ("add", "mul")


def remove_identity(builder: GraphBuilder, node: Node) -> str | None:
    """identity(x) -> x."""
    del builder
    return node.inputs[0] if node.op == "identity" else None


def remove_cast(builder: GraphBuilder, node: Node) -> str | None:
    """cast(x) -> x when x has that dtype."""
    same = node.op == "cast" and builder.value(node.inputs[0]).dtype == node.text("dtype")
    return node.inputs[0] if same else None


def constant_second(builder: GraphBuilder, node: Node) -> str | None:
    """c + x -> x + c."""
    if node.op not in _COMMUTATIVE:
        return None
    # Two constants that stay, as packed weights do, would change places in every round.
    first, second = (builder.is_constant(name) for name in node.inputs)
    if not first or second:
        return None
    return builder.emit(node.op, node.inputs[::-1], name=node.name, output=node.output)


def add_and_multiply(builder: GraphBuilder, node: Node) -> str | None:
    """x - c -> x + -c, x / c -> x * 1/c for floating-point constants."""
    if node.op not in ("sub", "div"):
        return None
    constant = builder.array(node.inputs[1])
    if constant is None or constant.dtype.kind != "f":
        return None
    least = np.finfo(constant.dtype).tiny
    if node.op == "div" and not np.all((np.abs(constant) > least) & (np.abs(constant) <= 1 / least)):
        return None  # the reciprocal would not be finite, or lose bits
    # Canonical form: sums and products commute, so constants can merge and fold into weights; differences and quotients
    # cannot.
    inverse = -constant.astype(np.float64) if node.op == "sub" else 1 / constant.astype(np.float64)
    operand = builder.constant(inverse.astype(constant.dtype), node.inputs[1])
    op = "add" if node.op == "sub" else "mul"
    return builder.emit(op, [node.inputs[0], operand], name=node.name, output=node.output)


def remove_neutral(builder: GraphBuilder, node: Node) -> str | None:
    """x * 1 -> x, x + -0 -> x, and x + 0 -> x for integers and sums, where the constant does not enlarge x."""
    if node.op not in _MERGING:
        return None
    x, constant = builder.value(node.inputs[0]), builder.array(node.inputs[1])
    # A neutral constant of a larger shape still broadcasts x.
    if constant is None or broadcast_shapes(x.shape, constant.shape) != x.shape:
        return None
    # x + 0 makes +0 of -0.
    if node.op == "add" and is_float(x.dtype) and not np.signbit(constant).all() and not _is_sum(builder, x.name):
        return None
    return x.name if np.all(constant == (0 if node.op == "add" else 1)) else None


def _is_sum(builder: GraphBuilder, name: str) -> bool:
    """Whether a value is a sum, as of products, that starts from +0: it is -0 only if a product underflows."""
    node = builder.producer(name)
    while node is not None and node.op in ("reshape", "transpose"):
        node = builder.producer(node.inputs[0])
    return node is not None and (OPS[node.op].kind is FusionKind.COMPLEX or node.op in ("reduce_sum", "reduce_mean"))


_ROUNDS = 4096
"""Adding a constant of at least this size rounds away significant digits."""


def merge_constants(builder: GraphBuilder, node: Node) -> str | None:
    """(x + c) + d -> x + (c + d), alike for products."""
    if node.op not in _MERGING:
        return None
    inner, outer = builder.producer(node.inputs[0]), builder.array(node.inputs[1])
    if inner is None or inner.op != node.op or outer is None or outer.dtype.kind != "f":
        return None
    constant = builder.array(inner.inputs[1])
    if constant is None:
        return None
    with np.errstate(all="ignore"):
        joined = (np.add if node.op == "add" else np.multiply)(constant, outer)
    lost = np.isfinite(constant) & np.isfinite(outer) & ~np.isfinite(joined)
    if node.op == "mul":
        lost |= (abs(joined) < np.finfo(outer.dtype).tiny) & (constant != 0) & (outer != 0)
    else:
        # Large numbers that cancel round x to an integer or to zero, on purpose.
        largest = np.maximum(abs(constant), abs(outer))
        lost |= (largest >= _ROUNDS) & (abs(joined) < largest / 2)
    # Separate factors may avoid the overflow or underflow of their product.
    if lost.any():
        return None
    both = builder.emit(node.op, [inner.inputs[1], node.inputs[1]], output=node.inputs[1])
    return builder.emit(node.op, [inner.inputs[0], both], name=node.name, output=node.output)


def trim_constant(builder: GraphBuilder, node: Node) -> str | None:
    """Drop leading axes of extent 1 of a constant operand; a single number becomes a scalar."""
    if OPS[node.op].kind is not FusionKind.BROADCAST:
        return None
    inputs = list(node.inputs)
    for i in range(len(inputs)):
        constant = builder.array(inputs[i])
        rank = max(len(builder.value(name).shape) for name in (*inputs[:i], *inputs[i + 1 :]))
        if constant is None or not constant.shape or rank < constant.ndim:
            continue
        shape = constant.shape if constant.size > 1 else ()
        while shape and shape[0] == 1:
            shape = shape[1:]
        if shape != constant.shape:
            inputs[i] = builder.constant(constant.reshape(shape), inputs[i])
    if tuple(inputs) == node.inputs:
        return None
    return builder.emit(node.op, inputs, node.attrs, name=node.name, output=node.output)


def drop_broadcast(builder: GraphBuilder, node: Node) -> str | None:
    """a + broadcast_to(b) -> a + b if `a` alone has the result's shape."""
    if OPS[node.op].kind is not FusionKind.BROADCAST or len(node.inputs) != 2:
        return None
    for i in range(2):
        producer, other = builder.producer(node.inputs[i]), builder.value(node.inputs[1 - i])
        if producer is None or producer.op != "broadcast_to":
            continue
        small = builder.value(producer.inputs[0])
        if broadcast_shapes(small.shape, other.shape) == broadcast_shapes(producer.ints("shape"), other.shape):
            inputs = [other.name, small.name] if i else [small.name, other.name]
            return builder.emit(node.op, inputs, node.attrs, name=node.name, output=node.output)
    return None


def small_power(builder: GraphBuilder, node: Node) -> str | None:
    """x^2 -> x * x, x^3 -> x * x * x, x^(1/2) -> sqrt(x), x^(-1/2) -> 1 / sqrt(x)."""
    exponent = builder.array(node.inputs[1]) if node.op == "pow" else None
    # Only exponents for which a few multiplications or a square root replace the call.
    if exponent is None or exponent.size != 1 or exponent.ndim > len(builder.value(node.inputs[0]).shape):
        return None
    x, power = node.inputs[0], float(exponent.astype(np.float64).item())
    if power in (2.0, 3.0):
        # At most two roundings (x^3): within about 1 ulp of the exact power.
        square = builder.emit("mul", [x, x], name=node.name, output=node.output)
        return square if power == 2.0 else builder.emit("mul", [square, x], name=node.name, output=node.output)
    if abs(power) != 0.5:
        return None
    root = builder.emit("sqrt", [x], name=node.name, output=node.output)
    numerator = builder.scalar(1, builder.value(x).dtype)
    return root if power > 0 else builder.emit("div", [numerator, root], name=node.name, output=node.output)


def mean_of_sum(builder: GraphBuilder, node: Node) -> str | None:
    """reduce_sum(x) * 1/n -> reduce_mean(x) for sums of n elements."""
    source, share = builder.producer(node.inputs[0]), builder.array(node.inputs[1]) if node.op == "mul" else None
    if source is None or source.op != "reduce_sum" or share is None or share.size != 1 or share.dtype.kind != "f":
        return None
    shape = builder.value(source.inputs[0]).shape
    count = math.prod(shape[axis] for axis in source.ints("axes"))
    if isinstance(count, Dim):
        return None
    # Exporters store 1/n rounded to the type, so the test permits one rounding error.
    if abs(float(share.item()) * count - 1) > np.finfo(share.dtype).eps or share.ndim > len(shape) - 1:
        return None
    return builder.emit("reduce_mean", source.inputs, source.attrs, name=node.name, output=node.output)


def bounds_to_clip(builder: GraphBuilder, node: Node) -> str | None:
    """min(max(x, low), high) -> clip(x), including the lower bound of a relu."""
    source, high = builder.producer(node.inputs[0]), builder.array(node.inputs[1]) if node.op == "minimum" else None
    if source is None or high is None or high.ndim or high.dtype.kind != "f":
        return None
    low = np.zeros((), high.dtype) if source.op == "relu" else None
    if source.op == "maximum":
        low = builder.array(source.inputs[1])
    # With low > high the order of the two operators would matter; a NaN bound fails the comparison too.
    if low is None or low.ndim or not low <= high:
        return None
    attrs = {"low": float(low), "high": float(high)}
    return builder.emit("clip", source.inputs[:1], attrs, name=node.name, output=node.output)


def pad_into_convolution(builder: GraphBuilder, node: Node) -> str | None:
    """conv2d(pad(x)) -> conv2d(x) with larger pads, if zeros are added to rows and columns alone."""
    if node.op != "conv2d":
        return None
    source = builder.producer(node.inputs[0])
    if source is None or source.op != "pad" or source.number("value") != 0.0:
        return None
    before, after = source.ints("pads_before"), source.ints("pads_after")
    rows = 2 if node.text("layout") == "NCHW" else 1
    others = [i for i in range(4) if i not in (rows, rows + 1)]
    if any(before[i] or after[i] for i in others):
        return None
    # Both pads add zeros, and zeros around zeros are a wider border of zeros.
    top, left, bottom, right = node.ints("pads")
    pads = (top + before[rows], left + before[rows + 1], bottom + after[rows], right + after[rows + 1])
    attrs = {**node.attrs, "pads": pads}
    return builder.emit("conv2d", [source.inputs[0], node.inputs[1]], attrs, name=node.name, output=node.output)


ARITHMETIC_RULES = (
    remove_identity,
    remove_cast,
    constant_second,
    add_and_multiply,
    remove_neutral,
    merge_constants,
    trim_constant,
    drop_broadcast,
    small_power,
    mean_of_sum,
    bounds_to_clip,
    pad_into_convolution,
)
