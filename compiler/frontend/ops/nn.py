"""Converters of ONNX convolutions, matrix products, batch normalization and determinants; activations stay NCHW."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from retune.compiler.core.dtype import promoted_type, sum_type
from retune.compiler.core.errors import DefinitionError
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, Formula, cast_to, formula_of, in_float32
from retune.compiler.frontend.ops.few_bits import multiply_rows
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute
from retune.compiler.ir.dims import same_shape
from retune.compiler.ops.conv import window_extent
from retune.compiler.ops.op import broadcast_shapes


def pads_of(
    node: OnnxNode,
    extents: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[int, ...]:
    """Padding before every axis, then after every axis."""
    rank = len(extents)
    auto = node.text("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return node.ints("pads") or (0,) * (2 * rank)
    if auto == "VALID":
        return (0,) * (2 * rank)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.unsupported(f"auto_pad {auto!r} is unknown")
    small, large = [], []
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        # SAME: one window per begun stride, whatever the kernel; an odd element of padding goes to the end in
        # SAME_UPPER.
        wanted = -(-extent // stride)
        total = max(0, (wanted - 1) * stride + dilation * (size - 1) + 1 - extent)
        small.append(total // 2)
        large.append(total - total // 2)
    before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return (*before, *after)


def _widen(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Attributes of one spatial axis (or its two pads) for two axes, the new axis of extent 1 first."""
    if len(values) == 1:
        return (fill, values[0])
    return (fill, values[0], fill, values[1])


def spatial_rank(node: OnnxNode, rank: int, kernel: tuple[int, ...]) -> int:
    """The spatial dimensions of a convolution of a value of `rank`."""
    if 0 in kernel:
        raise node.unsupported(f"a kernel of {list(kernel)} has no elements")
    if rank < 3:
        raise node.unsupported(f"an operand of {rank} dimensions has no image")
    return rank - 2


def rounded_once(convert: Converter) -> Converter:
    """The converter of a product with a bias, which rounds halves once.

    The kernel of a product adds the bias in float32. Constants are folded before there are kernels, and convolutions of
    four or more dimensions have a kernel for each slice: their values become float32.
    """

    def convert_node(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        is_folded = all(builder.array(name) is not None for name in node.inputs if name)
        is_sliced = len(node.operand(builder, 0).shape) > 5
        return (in_float32(convert) if is_folded or is_sliced else convert)(builder, node)

    return convert_node


def _convolution(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    x = convolution(builder, node, x, node.operand(builder, 1).name)
    if node.has_input(2):
        x = write("add", x, as_channels(builder, node.inputs[2], len(builder.value(x).shape)))
    return [x]


def as_channels(builder: GraphBuilder, name: str, rank: int) -> str:
    """A vector with an element per channel, in the shape for combining with activations of `rank`."""
    return builder.emit("reshape", [name], {"shape": (1, builder.value(name).size, *(1 for _ in range(rank - 2)))})


def convolution(builder: GraphBuilder, node: OnnxNode, x: str, w: str) -> str:
    """The convolution of `x` with `w` by the attributes of `node`, without a bias."""
    shape, weight = builder.value(x).shape, builder.value(w).shape
    kernel = weight[2:]
    rank = spatial_rank(node, len(shape), kernel)
    strides = node.ints("strides") or (1,) * rank
    dilations = node.ints("dilations") or (1,) * rank
    pads = pads_of(node, shape[2:], kernel, strides, dilations)
    return plain_convolution(builder, x, w, Window(strides, pads, dilations, node.integer("group", 1)), node.name)


@dataclass(frozen=True, slots=True)
class Window:
    """How a kernel moves over its operand, a number for each spatial axis, and two of padding."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1


def plain_convolution(builder: GraphBuilder, x: str, w: str, window: Window, name: str) -> str:
    """A convolution, channels first; one dimension becomes two, and of four or more the first one a sum."""
    strides, pads, dilations = window.strides, window.pads, window.dilations
    shape, weight = builder.value(x).shape, builder.value(w).shape
    if len(shape) > 5:
        return _sum_of_slices(builder, x, w, window, name)
    line = len(shape) == 3
    if line:
        x = builder.emit("reshape", [x], {"shape": (*shape[:2], 1, shape[2])})
        w = builder.emit("reshape", [w], {"shape": (*weight[:2], 1, weight[2])})
        # A line is an image of one row: two-dimensional kernels work for it.
        strides, dilations, pads = _widen(strides, 1), _widen(dilations, 1), _widen(pads, 0)
    op, layout = ("conv3d", "NCDHW") if len(shape) == 5 else ("conv2d", "NCHW")
    attrs: dict[str, Attribute] = {"strides": strides, "pads": pads, "dilations": dilations}
    attrs |= {"groups": window.groups, "layout": layout}
    x = builder.emit(op, [x, w], attrs, name=name)
    if line:
        n, channels, _, width = builder.value(x).shape
        x = builder.emit("reshape", [x], {"shape": (n, channels, width)})
    return x


def _sum_of_slices(builder: GraphBuilder, x: str, w: str, window: Window, name: str) -> str:
    """The sum over the kernel's first axis of convolutions of the other axes, whose batches are slices of the image."""
    strides, pads, dilations = window.strides, window.pads, window.dilations
    kernel, rank = builder.value(w).shape[2:], len(strides)
    inner = (*pads[1:rank], *pads[rank + 1 :])
    border: dict[str, Attribute] = {
        key: (0, 0, pad, *(0 for _ in kernel[1:]))
        for key, pad in (("pads_before", pads[0]), ("pads_after", pads[rank]))
    }
    x = builder.emit("pad", [x], {**border, "value": 0.0})
    n, channels, depth, *extents = builder.value(x).shape
    count = window_extent(depth, kernel[0], strides[0], dilations[0], 0, 0)
    if count < 0:
        raise DefinitionError(f"the window {kernel} does not fit")
    swapped, total = (0, 2, 1, *range(3, rank + 2)), ""
    for tap in range(kernel[0]):
        first = tap * dilations[0]
        slices = take(builder, x, 2, range(first, first + count * strides[0], strides[0]))
        slices = builder.emit("transpose", [slices], {"perm": swapped})
        slices = builder.emit("reshape", [slices], {"shape": (n * count, channels, *extents)})
        weight = take(builder, w, 2, [tap])
        weight = builder.emit("reshape", [weight], {"shape": (*builder.value(w).shape[:2], *kernel[1:])})
        others = Window(strides[1:], inner, dilations[1:], window.groups)
        part = plain_convolution(builder, slices, weight, others, name)
        total = builder.emit("add", [total, part]) if total else part
    _, channels, *extents = builder.value(total).shape
    total = builder.emit("reshape", [total], {"shape": (n, count, channels, *extents)})
    return builder.emit("transpose", [total], {"perm": swapped})


def _batch_normalization(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    dtypes = [node.operand(builder, index).dtype for index in range(5)]
    # Statistics of halves may be float32.
    wide = reduce(promoted_type, dtypes)
    wide = sum_type(wide) if node.integer("training_mode", 0) else wide
    x, *factors = operands = [cast_to(builder, name, wide) for name in node.inputs[:5]]
    write, epsilon = Formula(builder, node, wide), node.number("epsilon", 1e-5)
    if not node.integer("training_mode", 0):
        if any(node.outputs[1:]):
            raise node.unsupported("results of training; export the model for inference")
        return [cast_to(builder, write("batch_norm", *operands, axis=1, epsilon=epsilon), dtypes[0])]
    # Training mode normalizes by the batch's own statistics, and ONNX wants updated running statistics as results.
    axes = tuple(axis for axis in range(len(builder.value(x).shape)) if axis != 1)
    mean = write("reduce_mean", x, axes=axes, keepdims=True)
    centred = write("sub", x, mean)
    spread = write("reduce_mean", write("mul", centred, centred), axes=axes, keepdims=False)
    mean = write("reshape", mean, shape=builder.value(spread).shape)
    momentum = node.number("momentum", 0.9)
    running = [
        write("add", write("mul", old, momentum), write("mul", new, 1 - momentum))
        for old, new in zip(factors[2:], (mean, spread), strict=True)
    ]
    results = [write("batch_norm", x, *factors[:2], mean, spread, axis=1, epsilon=epsilon), *running]
    return [cast_to(builder, name, dtype) for name, dtype in zip(results, (dtypes[0], *dtypes[3:]), strict=True)]


def _determinant(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """By minors of the first row: accurate enough, and fast, for small matrices."""
    write, x = formula_of(builder, node)
    *batch, rows, columns = builder.value(x).shape
    # Laplace's expansion takes n! products: 24 for 4, 120 for 5.
    if rows != columns or rows > 4:
        raise node.unsupported(f"a matrix of {rows} x {columns}; only square ones up to 4 x 4")
    if rows == 0:  # the empty product
        return [builder.filled(1, builder.value(x).dtype, batch)]
    flat = write("reshape", x, shape=(*batch, rows * columns))
    cells = [take(builder, flat, len(batch), [index]) for index in range(rows * columns)]
    entries = [write("reshape", cell, shape=tuple(batch)) for cell in cells]

    def minor(row: int, columns_left: tuple[int, ...]) -> str:
        if row == rows - 1:
            return entries[row * columns + columns_left[0]]
        total = ""
        for number, column in enumerate(columns_left):
            remaining = (*columns_left[:number], *columns_left[number + 1 :])
            term = write("mul", entries[row * columns + column], minor(row + 1, remaining))
            total = term if not total else write("sub" if number % 2 else "add", total, term)
        return total

    return [minor(0, tuple(range(columns)))]


def _gemm(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    is_scaled = node.number("alpha", 1.0) != 1.0 or node.number("beta", 1.0) not in (0.0, 1.0)
    return (in_float32(_scaled_product) if is_scaled else _scaled_product)(builder, node)


def _scaled_product(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, a = formula_of(builder, node)
    b = node.operand(builder, 1).name
    if node.integer("transA", 0):
        a = write("transpose", a, perm=(1, 0))
    if node.integer("transB", 0):
        b = write("transpose", b, perm=(1, 0))
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if alpha != 1.0:
        # Not the product: a constant weight is scaled at compile time.
        b = write("mul", b, alpha)
    result = multiply_rows(builder, node, a, b)
    if not node.has_input(2) or beta == 0.0:
        return [result]
    bias = node.inputs[2]
    return [write("add", result, bias if beta == 1.0 else write("mul", bias, beta))]


def _matmul(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    _, a = formula_of(builder, node)
    return [matrix_product(builder, node, a, node.operand(builder, 1).name)]


def matrix_product(builder: GraphBuilder, node: OnnxNode, a: str, b: str) -> str:
    """The product of two values of any rank by NumPy's rule."""
    write = Formula(builder, node, builder.value(a).dtype)
    a_shape, b_shape = builder.value(a).shape, builder.value(b).shape
    if not a_shape or not b_shape:
        raise node.unsupported("an operand has no dimensions")
    result_tail = (*a_shape[-2:-1], *(b_shape[-1:] if len(b_shape) > 1 else ()))
    if len(a_shape) == 1:
        a_shape = (1, *a_shape)
    if len(b_shape) == 1:
        b_shape = (*b_shape, 1)
    batch = broadcast_shapes(a_shape[:-2], b_shape[:-2])
    if batch is None:
        raise node.unsupported(f"shapes {list(a_shape)} and {list(b_shape)} do not broadcast")

    def reshape(name: str, shape: tuple[int, ...]) -> str:
        return name if same_shape(builder.value(name).shape, shape) else write("reshape", name, shape=shape)

    def broadcast(name: str, shape: tuple[int, ...]) -> str:
        name = reshape(name, shape)
        full = (*batch, *shape[-2:])
        return name if same_shape(shape, full) else write("broadcast_to", name, shape=full)

    # One matrix for the whole batch: all rows are one product, which reads the weight once.
    if len(b_shape) == 2:
        rows = prod(a_shape[:-1])
        product = multiply_rows(builder, node, reshape(a, (rows, a_shape[-1])), reshape(b, b_shape))
    else:
        count = prod(batch)
        left = reshape(broadcast(a, a_shape), (count, *a_shape[-2:]))
        right = reshape(broadcast(b, b_shape), (count, *b_shape[-2:]))
        product = write("batch_matmul", left, right)
    return reshape(product, (*batch, *result_tail))


CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "Conv": rounded_once(_convolution),
    "Det": in_float32(_determinant),
    "Gemm": rounded_once(_gemm),
    "MatMul": _matmul,
}
