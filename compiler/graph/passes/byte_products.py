"""Products of dequantized values as products of bytes, whose exact sums are int32.

    sum((q - zero) * w) * scale = (sum(q * w) - zero * sum(w)) * scale

Zero points of weights are subtracted at compile time; those of activations contribute one constant per channel, since
padding holds the zero point, or sums of rows and columns where both operands are activations.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Attribute, Node
from retune.compiler.graph.passes.requantize import spread
from retune.compiler.graph.passes.subpixel_conv import ordered_by_phase, phases_of
from retune.compiler.graph.verify import infer_value
from retune.compiler.ir.dot import BYTES, OTHER_SIGN
from retune.compiler.ops.op import broadcast_shapes

PRODUCTS = {
    "conv2d": "qconv2d", "conv3d": "qconv3d", "dense": "qdense", "batch_matmul": "qbatch_matmul",
    "conv_transpose2d": "qconv_phases2d",
}  # fmt: skip
"""The operators that have a form for bytes, and that form."""
# The largest product of a uint8 and an int8 has the magnitude 255 x 128.
MOST_PRODUCTS = 2**31 // (255 * 128) - 1
"""Longer sums of products could overflow int32."""
_TERMS = 4
"""Products that an instruction sums."""
_LEAST_TERMS = 16
"""Shorter sums cost less than the copies of their operands."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A dequantized value: its integers `name`, `scale`, `zero` point, and the `axis` along which both vary."""

    name: str
    scale: Array
    zero: Array
    axis: int

    @property
    def uniform(self) -> bool:
        return self.scale.size == 1


def quantity_of(builder: GraphBuilder, name: str) -> Quantity | None:
    """The quantized form of `name`, if its scale and zero point are constant."""
    node = builder.producer(name)
    if node is None or node.op != "dequantize":
        return None
    scale, zero = builder.array(node.inputs[1]), builder.array(node.inputs[2])
    return None if scale is None or zero is None else Quantity(node.inputs[0], scale, zero, node.integer("axis"))


def flip_sign(builder: GraphBuilder, name: str, output: str = "") -> str:
    """Bytes of the other signedness, 128 higher or lower: their highest bit flipped."""
    dtype = builder.value(name).dtype
    bit = builder.constant(np.array(-128 if dtype == "int8" else 128, dtype), "bit")
    turned = builder.emit("bit_xor", [name, bit])
    return builder.emit("bits", [turned], {"dtype": OTHER_SIGN[dtype]}, output=output)


def join_product(builder: GraphBuilder, node: Node) -> str | None:
    """A convolution or matrix product of dequantized values -> a product of bytes, times the scales; else None."""
    x, w = quantity_of(builder, node.inputs[0]), quantity_of(builder, node.inputs[1])
    if x is None or w is None or not x.uniform or builder.value(x.name).dtype not in BYTES:
        return None
    if node.op == "batch_matmul":
        return _batch_product(builder, node, x, w)
    raw = builder.array(w.name)
    if raw is None or raw.dtype.name not in BYTES:
        return None
    channel = 0 if node.op in ("conv2d", "conv3d") else 1
    if not w.uniform and w.axis != channel:
        return None
    if node.op == "conv_transpose2d" and max(node.ints("strides")) == 1:
        # With stride 1 it is a convolution by the reversed weight.
        pads = tuple(extent - 1 - pad for extent, pad in zip(raw.shape[2:] * 2, node.ints("pads"), strict=True))
        attrs: dict[str, Attribute] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "layout": "NCHW"}
        if min(pads) < 0:
            return None
        raw, channel = raw.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], 0
        node = replace(node, op="conv2d", attrs={**attrs, "pads": pads})
    along = [-1 if axis == channel else 1 for axis in range(raw.ndim)]
    # The weight's zero point is subtracted at compile time. If a difference of two bytes does not fit a byte, the
    # product stays in float.
    weight = raw.astype(np.int32) - w.zero.astype(np.int32).reshape(along if w.zero.size > 1 else ())
    others = tuple(axis for axis in range(raw.ndim) if axis != channel)
    fits = weight.min(initial=0) >= -128 and weight.max(initial=0) <= 127
    if not fits or weight.size // raw.shape[channel] > MOST_PRODUCTS:
        return None
    zero = int(x.zero.item())
    scale = x.scale.astype(np.float32) * w.scale.astype(np.float32)
    if node.op == "conv_transpose2d":
        whole = _phases(builder, node, x.name, weight, zero)
        return _scale(builder, node, whole, scale.reshape((-1, 1, 1) if scale.size > 1 else ()))
    # sum((q - zero) * w) = sum(q * w) - zero * sum(w). Padding holds the zero point, so the second sum is the same at
    # the border.
    sums = -zero * weight.sum(axis=others)
    spread = [-1] if node.op == "dense" else [1, -1, *(1 for _ in raw.shape[2:])]
    whole = byte_product(builder, node, x.name, weight, zero, name=node.name)
    if sums.any():
        whole = builder.emit("add", [whole, builder.constant(sums.astype(np.int32).reshape(spread), "zeros")])
    return _scale(builder, node, whole, scale.reshape(spread if scale.size > 1 else ()))


def byte_product(builder: GraphBuilder, node: Node, x: str, weight: Array, zero: int, *, name: str) -> str:
    """The int32 product of the bytes `x`, whose zero point is `zero`, and the integers of the weight of a convolution
    or matrix product, called `name`.

    x86 (vpdpbusd) and Arm (sdot) add four products of bytes into each int32: weights get zeros for a multiple of four
    terms, along the rows of a matrix, the channels, or the rows or columns of a depthwise window.
    """
    attrs: dict[str, Attribute] = dict(node.attrs)
    if node.op == "dense":
        x = _filled_terms(builder, x, 1)
        weight = np.pad(weight, ((0, builder.value(x).shape[1] - len(weight)), (0, 0)))
    else:
        if _is_thin(node, weight):
            x, weight, attrs = _join_channels(builder, node, x, weight)
        attrs |= {"pad_value": zero, "window": ()}
        groups, axis = node.integer("groups"), 1
        if weight.shape[1] == 1 < groups == weight.shape[0] and weight.ndim == 4:
            axis, attrs["window"] = 2 if weight.shape[2] > 1 else 3, weight.shape[2:]
        if weight.shape[axis] > 1 and (groups == 1 or axis > 1):
            more = -weight.shape[axis] % 4
            weight = np.pad(weight, [(0, more if dim == axis else 0) for dim in range(weight.ndim)])
    operands = [x, builder.constant(weight.astype(np.int8), node.inputs[1])]
    return builder.emit(PRODUCTS[node.op], operands, attrs, name=name)


def _is_thin(node: Node, weight: Array) -> bool:
    """Whether a convolution reads pixels of fewer numbers than are summed together, next to each other."""
    is_dense = node.op == "conv2d" and node.integer("groups") == 1 and node.ints("dilations")[-1] == 1
    return is_dense and weight.shape[1] < _TERMS and weight.shape[3] > 1


def _join_channels(builder: GraphBuilder, node: Node, x: str, weight: Array) -> tuple[str, Array, dict[str, Attribute]]:
    """The input, weight and attributes of an equal convolution of a single channel, whose rows hold the channels of all
    their pixels.

    Terms that are summed together go on from pixel to pixel, and no channel is added to every pixel.
    """
    batch, channels, height, width = builder.value(x).shape
    stride, (top, left, bottom, right) = node.ints("strides")[1], node.ints("pads")
    steps = (width + left + right - weight.shape[3]) // stride
    rows = weight.transpose(0, 2, 3, 1).reshape(len(weight), 1, weight.shape[2], -1)
    rows = np.pad(rows, ((0, 0), (0, 0), (0, 0), (0, -rows.shape[3] % _TERMS)))
    # As much padding as the last window needs, whose last terms may be zeros of the weight.
    after = max(0, steps * stride * channels + rows.shape[3] - (width + left) * channels)
    attrs = {**node.attrs, "strides": (node.ints("strides")[0], stride * channels)}
    last = builder.emit("transpose", [x], {"perm": (0, 2, 3, 1)})
    joined = builder.emit("reshape", [last], {"shape": (batch, 1, height, width * channels)})
    return joined, rows, {**attrs, "pads": (top, left * channels, bottom, after)}


def _phases(builder: GraphBuilder, node: Node, x: str, weight: Array, zero: int) -> str:
    """The int32 result of a transposed convolution of bytes, phase by phase; each has its own sums of the weight."""
    phases = phases_of(builder, node, rounds_up=True)
    assert phases is not None, "the stride is not 1"
    weight, attrs = ordered_by_phase(weight.transpose(2, 3, 0, 1), phases), {**phases, "pad_value": zero}
    rows, columns = node.ints("strides")
    taps = weight.reshape(-1, rows, weight.shape[1] // columns, columns, *weight.shape[2:])
    sums = -zero * taps.sum((0, 2, 4)).astype(np.int32)[:, None]
    last = builder.emit("transpose", [x], {"perm": (0, 2, 3, 1)})
    operands = [last, builder.constant(weight.astype(np.int8), node.inputs[1])]
    whole = builder.emit("qconv_phases2d", operands, attrs, name=node.name)
    if sums.any():
        whole = builder.emit("add", [whole, builder.constant(sums, "zeros")])
    batch, height, _, width, _, made = builder.value(whole).shape
    whole = builder.emit("reshape", [whole], {"shape": (batch, height * rows, width * columns, made)})
    shape = infer_value(node, tuple(map(builder.value, node.inputs))).shape
    stops = (batch, *shape[2:], made)
    if stops != builder.value(whole).shape:
        whole = builder.emit("slice", [whole], {"starts": (0,) * 4, "stops": stops, "steps": (1,) * 4})
    return builder.emit("transpose", [whole], {"perm": (0, 3, 1, 2)})


def _batch_product(builder: GraphBuilder, node: Node, a: Quantity, b: Quantity) -> str | None:
    """A product of two computed operands: sum((a - x) * (b - y)) = sum(a * b) - y * sum(a) - x * sum(b) + x * y * K."""
    depth = builder.value(a.name).shape[2]
    if not b.uniform or builder.value(b.name).dtype not in BYTES or depth > MOST_PRODUCTS // 2:
        return None
    (first, left), (second, right) = _mix_signs(builder, _center(builder, a), _center(builder, b))
    first, second = _filled_terms(builder, first, 2), _filled_terms(builder, second, 1)
    whole = builder.emit("qbatch_matmul", [first, second], name=node.name)
    correction = left * right * depth
    for name, axis, zero in ((first, 2, right), (second, 1, left)):
        if zero:
            wide = builder.emit("cast", [name], {"dtype": "int32"})
            sums = builder.emit("reduce_sum", [wide], {"axes": (axis,), "keepdims": True})
            factor = spread(np.array(-zero, np.int32), builder.value(sums).shape)
            excess = builder.emit("mul", [sums, builder.constant(factor, "zero")])
            if correction:
                number = spread(np.array(correction, np.int32), builder.value(sums).shape)
                excess, correction = builder.emit("add", [excess, builder.constant(number, "zeros")]), 0
            whole = builder.emit("add", [whole, excess])
    return _scale(builder, node, whole, (a.scale.astype(np.float32) * b.scale.astype(np.float32)).reshape(()))


def _filled_terms(builder: GraphBuilder, name: str, axis: int) -> str:
    """An operand of a product with zeros for a multiple of four terms, which are summed together."""
    shape = builder.value(name).shape
    if shape[axis] < _LEAST_TERMS or not shape[axis] % 4:
        return name
    after = tuple(-extent % 4 if number == axis else 0 for number, extent in enumerate(shape))
    attrs: dict[str, Attribute] = {"pads_before": (0,) * len(shape), "pads_after": after, "value": 0.0}
    return builder.emit("pad", [name], attrs)


def _center(builder: GraphBuilder, numbers: Quantity) -> tuple[str, int]:
    """The bytes and their zero point; of the other signedness where that has the zero point 0."""
    zero = int(numbers.zero.item())
    return (flip_sign(builder, numbers.name), 0) if zero == 128 else (numbers.name, zero)


def _mix_signs(builder: GraphBuilder, left: tuple[str, int], right: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    """Bytes and zero points of two operands, of different signedness if either has a zero point, which joins the sums
    that are subtracted anyway: x86 multiplies such bytes as they are.
    """
    dtypes = [builder.value(name).dtype for name, _ in (left, right)]
    if dtypes[0] != dtypes[1] or not (left[1] or right[1]):
        return left, right
    moved = 128 if dtypes[0] == "int8" else -128
    if right[1]:
        return left, (flip_sign(builder, right[0]), right[1] + moved)
    return (flip_sign(builder, left[0]), left[1] + moved), right


def _scale(builder: GraphBuilder, node: Node, whole: str, scale: Array) -> str:
    """Integers times a scale."""
    real = builder.emit("cast", [whole], {"dtype": "float32"})
    factor = builder.constant(spread(scale, builder.value(whole).shape), "scale")
    return builder.emit("rounded_mul", [real, factor], name=node.name, output=node.output)


def add_bias(builder: GraphBuilder, node: Node) -> str | None:
    """product * scale + dequantize(bias) -> (product + bias) * scale, if the bias has the product's scale."""
    for product, added in (node.inputs, node.inputs[::-1]):
        scaled, bias = builder.producer(product), quantity_of(builder, added)
        if scaled is None or scaled.op != "rounded_mul" or bias is None or bias.zero.any():
            continue
        real, scale, numbers = (
            builder.producer(scaled.inputs[0]),
            builder.array(scaled.inputs[1]),
            builder.array(bias.name),
        )
        if real is None or real.op != "cast" or scale is None or numbers is None or numbers.dtype != np.int32:
            continue
        whole = builder.value(real.inputs[0])
        # The exporter's float32 product of the two scales may differ from ours in the last bits.
        alike = scale.size == bias.scale.size and np.allclose(scale.ravel(), bias.scale.ravel(), rtol=1e-6, atol=0)
        fits = alike and _largest_sum(builder, whole.name) + _magnitude(numbers) < 2**31
        if whole.dtype == "int32" and fits and broadcast_shapes(whole.shape, numbers.shape) == whole.shape:
            total = builder.emit("add", [whole.name, builder.constant(numbers, added)])
            return _scale(builder, node, total, scale)
    return None


def _largest_sum(builder: GraphBuilder, name: str) -> int:
    """An upper bound of the magnitude of an integer product with what was added to it."""
    added, node = 0, builder.producer(name)
    while node is not None and node.op in ("add", "reshape", "transpose"):
        numbers = builder.array(node.inputs[1]) if node.op == "add" else None
        added += 0 if numbers is None else _magnitude(numbers)
        node = builder.producer(node.inputs[0])
    if node is None or node.op not in PRODUCTS.values():
        return 2**31
    shape = builder.value(node.inputs[1]).shape
    whole = math.prod(shape[1:])
    depths = {"qconv2d": whole, "qconv3d": whole, "qconv_phases2d": math.prod(shape[:3])}
    depth = depths.get(node.op, shape[-2])
    # A constant weight is int8; two activations may both be uint8.
    return added + depth * 255 * (255 if node.op == "qbatch_matmul" else 128)


def _magnitude(numbers: Array) -> int:
    return int(np.abs(numbers.astype(np.int64)).max(initial=0))
