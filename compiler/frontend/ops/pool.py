"""Converters of ONNX pooling operators of one to three dimensions.

Padding never wins a maximum, and counts in a mean only with `count_include_pad`. A three-dimensional pool is a pool
over rows and columns followed by one over planes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx

from retune.compiler.core.dtype import is_float, sum_type
from retune.compiler.frontend.ops.attributes import OnnxNode, read_attributes
from retune.compiler.frontend.ops.elementwise import Converter, cast_to, formula_of, in_float32
from retune.compiler.frontend.ops.nn import Window, pads_of, plain_convolution
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Attribute
from retune.compiler.ops.conv import window_extent


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a pool along its spatial axes, one element per axis.

    `pads` holds the padding before all axes, then the padding after them. `grown` is the extra padding at the end that
    the last, partial window needs.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    grown: tuple[int, ...]

    def of(self, *axes: int) -> "_Windows":
        """The same along fewer axes, or with an axis of extent 1 for None."""
        rank = len(self.kernel)

        def pick(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
            return tuple(values[axis] if axis >= 0 else fill for axis in axes)

        pads = (*pick(self.pads[:rank], 0), *pick(self.pads[rank:], 0))
        return _Windows(pick(self.kernel, 1), pick(self.strides, 1), pick(self.dilations, 1), pads, pick(self.grown, 0))

    @property
    def all_pads(self) -> tuple[int, ...]:
        rank = len(self.kernel)
        return (*self.pads[:rank], *(pad + more for pad, more in zip(self.pads[rank:], self.grown, strict=True)))

    def counts(self, extents: tuple[int, ...]) -> list[int]:
        """The number of windows along each axis of these `extents`; a negative one is no shape."""
        rank, pads = len(extents), self.all_pads
        sizes = zip(extents, self.kernel, self.strides, self.dilations, pads[:rank], pads[rank:], strict=True)
        return [window_extent(*each) for each in sizes]


def _windows_of(node: OnnxNode, extents: tuple[int, ...]) -> _Windows:
    rank = len(extents)
    if rank not in (1, 2, 3):
        raise node.unsupported(f"only 1-D, 2-D and 3-D is supported, not {rank}-D")
    kernel = node.ints("kernel_shape") or ()
    strides = node.ints("strides") or (1,) * rank
    dilations = node.ints("dilations") or (1,) * rank
    pads = pads_of(node, extents, kernel, strides, dilations)
    windows = _Windows(kernel, strides, dilations, pads, (0,) * rank)
    # Of an axis on which no window fits, ONNX Runtime keeps the partial one without `ceil_mode`, too.
    ceils = [bool(node.integer("ceil_mode", 0)) or count <= 0 for count in windows.counts(extents)]
    return replace(windows, grown=_missing(windows, extents, ceils))


def without_ceil_mode(pool: onnx.NodeProto, extents: tuple[int, ...]) -> onnx.NodeProto:
    """The pool of an image of these extents with padding in place of `ceil_mode`, for shape inference. ONNX's own
    inference also counts windows that start in the padding, which no runtime computes.
    """
    attributes = read_attributes(pool)
    if not attributes.pop("ceil_mode", 0):
        return pool
    node = OnnxNode(pool.op_type, pool.name, (), tuple(pool.output), {**attributes, "ceil_mode": 1}, 0)
    attributes |= {"pads": _windows_of(node, extents).all_pads, "auto_pad": "NOTSET"}
    return onnx.helper.make_node(pool.op_type, pool.input, pool.output, pool.name, **attributes)


def _pool(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    _, x = formula_of(builder, node)
    maximum = node.op_type == "MaxPool"
    result = _pool_planes(builder, node, x, maximum=maximum, include=bool(node.integer("count_include_pad", 0)))
    return [result, _max_indices(builder, node, x)] if any(node.outputs[1:]) else [result]


def _max_indices(builder: GraphBuilder, node: OnnxNode, x: str) -> str:
    """The index in the whole input of the largest element of each window."""
    write, _ = formula_of(builder, node)
    n, channels, *extents = builder.value(x).shape
    windows = _windows_of(node, tuple(extents))
    rank, area, outputs = len(extents), prod(extents), windows.counts(tuple(extents))
    if 0 in outputs:
        return builder.filled(0, "int64", (n, channels, *outputs))
    cells = np.indices(outputs).reshape(rank, -1, 1)
    taps = np.indices(windows.kernel).reshape(rank, 1, -1)
    columns = [np.asarray(values).reshape(-1, 1, 1) for values in (windows.strides, windows.dilations, extents)]
    at = cells * columns[0] + taps * columns[1] - np.asarray(windows.pads[:rank]).reshape(-1, 1, 1)
    inside = ((at >= 0) & (at < columns[2])).all(axis=0)
    # Padding reads a valid element, which the lowest number replaces next.
    at = np.clip(at, 0, columns[2] - 1)
    read = np.ravel_multi_index(tuple(at), extents)
    # storage_order 1 numbers elements column by column.
    numbers = np.ravel_multi_index(tuple(at), extents, order="F") if node.integer("storage_order", 0) else read
    rows = write("reshape", x, shape=(n * channels, area))
    dtype = builder.value(x).dtype
    lowest = builder.scalar(-np.inf if is_float(dtype) else int(np.iinfo(dtype).min), dtype)
    seen = write("gather", rows, builder.constant(read, "window"), axis=1)
    seen = write("where", builder.constant(inside, "inside"), seen, lowest)
    tap = write("arg_max", seen, axis=2, keepdims=False)
    start = builder.constant(np.arange(read.shape[0]) * read.shape[1], "start")
    flat = builder.constant(numbers.ravel(), "numbers")
    within = write("gather", flat, write("add", tap, start), axis=0)
    planes = builder.constant(np.arange(n * channels).reshape(-1, 1) * area, "plane")
    return write("reshape", write("add", within, planes), shape=(n, channels, *outputs))


def _max_unpool(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """Zeros, except for the elements at a MaxPool's indices."""
    write, x = formula_of(builder, node)
    n, channels, *extents = builder.value(x).shape
    kernel = node.ints("kernel_shape") or ()
    rank = len(kernel)
    strides, pads = node.ints("strides") or (1,) * rank, node.ints("pads") or (0,) * (2 * rank)
    if rank != len(extents):
        raise node.unsupported(f"a kernel of {rank} dimensions for data of {len(extents)}")
    pooled = [(extent - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] for i, extent in enumerate(extents)]
    planes = builder.constant(np.arange(n * channels).reshape(-1, 1) * prod(pooled), "plane")
    flat = (n * channels, prod(extents))
    indices = write("sub", write("reshape", node.operand(builder, 1).name, shape=flat), planes)
    empty = builder.constant(np.zeros((n * channels, prod(pooled)), builder.value(x).dtype), "empty")
    values = write("reshape", x, shape=flat)
    result = write("scatter_elements", empty, indices, values, axis=1, reduction="none")
    result = write("reshape", result, shape=(n, channels, *pooled))
    if not node.has_input(2):
        return [result]
    wanted = node.int_list(builder, 2, "the output's shape")
    missing = tuple(want - have for want, have in zip(wanted, (n, channels, *pooled), strict=True))
    if min(missing) < 0:
        raise node.unsupported(f"output_shape {list(wanted)} is smaller than {[n, channels, *pooled]}")
    return [write("pad", result, pads_before=(0,) * (rank + 2), pads_after=missing, value=0.0)]


def _col2im(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """An image as the sum of overlapping blocks: each element gathers and sums the windows over it."""
    write, x = formula_of(builder, node)
    image, block = (node.int_list(builder, i, what) for i, what in ((1, "the image's shape"), (2, "the block's shape")))
    rank = len(image)
    strides, dilations = node.ints("strides") or (1,) * rank, node.ints("dilations") or (1,) * rank
    pads = node.ints("pads") or (0,) * (2 * rank)
    counts = [
        window_extent(*sizes) for sizes in zip(image, block, strides, dilations, pads[:rank], pads[rank:], strict=True)
    ]
    n, rows, length = builder.value(x).shape
    if prod(counts) != length or rows % prod(block):
        raise node.unsupported(f"{list(builder.value(x).shape)} are not the blocks {counts} of {list(block)}")
    cells, taps = np.indices(image).reshape(rank, -1, 1), np.indices(block).reshape(rank, 1, -1)

    def column(values: Sequence[int]) -> Array:
        return np.asarray(values).reshape(-1, 1, 1)

    moved = cells + column(pads[:rank]) - taps * column(dilations)
    window = moved // column(strides)
    hit = ((moved % column(strides) == 0) & (window >= 0) & (window < column(counts))).all(axis=0)
    number = np.ravel_multi_index(tuple(np.clip(window, 0, column(counts) - 1)), counts)
    indices = np.arange(prod(block)) * length + number
    flat = write("reshape", x, shape=(n, rows // prod(block), prod(block) * length))
    terms = write("gather", flat, builder.constant(indices, "window"), axis=2)
    terms = write("where", builder.constant(hit, "hit"), terms, 0.0)
    total = write("reduce_sum", terms, axes=(3,), keepdims=False)
    return [write("reshape", total, shape=(n, rows // prod(block), *image))]


def _pool_planes(builder: GraphBuilder, node: OnnxNode, x: str, *, maximum: bool, include: bool) -> str:
    """The pool of `x`, by planes: rows and columns first, then the remaining axis."""
    n, channels, *extents = builder.value(x).shape
    windows = _windows_of(node, tuple(extents))
    if builder.value(x).size == 0 and 0 not in (n, channels, *windows.counts(tuple(extents))):
        raise node.unsupported(f"its windows hold nothing of {list(builder.value(x).shape)} but padding")

    def reshape(name: str, *shape: int) -> str:
        return builder.emit("reshape", [name], {"shape": shape})

    def plane(name: str, chosen: _Windows) -> str:
        return _plane(builder, node, name, chosen, maximum, include)

    if len(extents) == 2:
        return plane(x, windows)
    if len(extents) == 1:
        result = plane(reshape(x, n, channels, 1, extents[0]), windows.of(-1, 0))
        return reshape(result, n, channels, builder.value(result).shape[3])
    # Separable: a maximum of maxima, and a mean over the product of the counts along the axes.
    result = plane(reshape(x, n, channels * extents[0], *extents[1:]), windows.of(1, 2))
    rows, columns = builder.value(result).shape[2:]
    result = plane(reshape(result, n, channels, extents[0], rows * columns), windows.of(0, -1))
    return reshape(result, n, channels, builder.value(result).shape[2], rows, columns)


def _plane(builder: GraphBuilder, node: OnnxNode, x: str, windows: _Windows, maximum: bool, include: bool) -> str:
    attrs: dict[str, Attribute] = {
        "kernel": windows.kernel,
        "strides": windows.strides,
        "pads": windows.all_pads,
        "layout": "NCHW",
    }
    if maximum:
        return builder.emit("max_pool2d", [x], {**attrs, "dilations": windows.dilations}, name=node.name)
    # Padding of ceil_mode never counts, the file's padding may: the operator has one kind of padding.
    if set(windows.dilations) == {1} and not (include and any(windows.grown)):
        counted = include and any(windows.pads)
        return builder.emit("avg_pool2d", [x], {**attrs, "count_include_pad": counted}, name=node.name)
    n, channels, *extents = builder.value(x).shape
    dtype = builder.value(x).dtype
    wide = sum_type(dtype)
    single = builder.emit("reshape", [cast_to(builder, x, wide)], {"shape": (n * channels, 1, *extents)})
    # A sum over windows is a convolution with ones, which supports dilations; each sum is divided by its count.
    ones = builder.constant(np.ones((1, 1, *windows.kernel), wide), "ones")
    window = Window(windows.strides, windows.all_pads, windows.dilations)
    total = plain_convolution(builder, single, ones, window, node.name)
    output = builder.value(total).shape[2:]
    counts = np.outer(*(_counts(windows, axis, extents[axis], output[axis], include) for axis in (0, 1)))
    mean = builder.emit("div", [total, builder.constant(counts.astype(wide), "counts")])
    mean = cast_to(builder, mean, dtype)
    return builder.emit("reshape", [mean], {"shape": (n, channels, *output)})


def _counts(windows: _Windows, axis: int, extent: int, outputs: int, include: bool) -> Array:
    """Number of elements of each window's mean, along one axis."""
    before, after = windows.pads[axis], windows.pads[len(windows.kernel) + axis]
    steps = np.arange(windows.kernel[axis]) * windows.dilations[axis]
    positions = np.arange(outputs)[:, None] * windows.strides[axis] - before + steps
    low, high = (-before, extent + after) if include else (0, extent)
    return np.asarray(((positions >= low) & (positions < high)).sum(axis=1))


def _missing(windows: _Windows, extents: tuple[int, ...], ceils: Sequence[bool]) -> tuple[int, ...]:
    """What the last, partial window of each axis lacks where it is kept; one that starts in the padding is dropped."""
    rank, grown = len(extents), []
    for i, (extent, count) in enumerate(zip(extents, windows.counts(extents), strict=True)):
        stride, after = windows.strides[i], windows.pads[rank + i]
        covered, span = extent + windows.pads[i], windows.dilations[i] * (windows.kernel[i] - 1) + 1
        # No window starts in padding that is shorter than what two windows share: nothing is decided about a symbolic
        # extent then.
        is_kept = ceils[i] and (after + stride <= span or count * stride < covered)
        grown.append((span - covered - after) % stride if is_kept else 0)
    return tuple(grown)


def _lp_pool(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """(sum of |x|^p)^(1/p): the mean over windows, with zeros as padding, times their size."""
    write, x = formula_of(builder, node)
    p = node.number("p", 2)
    raised = write("mul", x, x) if p == 2 else write("pow", write("abs", x), p)
    size = float(np.prod(node.ints("kernel_shape") or ()))
    grown = {"pads": _windows_of(node, builder.value(x).shape[2:]).all_pads, "auto_pad": b"NOTSET", "ceil_mode": 0}
    unpadded = replace(node, attributes={**node.attributes, **grown})
    total = write("mul", _pool_planes(builder, unpadded, raised, maximum=False, include=True), size)
    return [write("sqrt", total) if p == 2 else write("pow", total, 1 / p)]


def _lp_global(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    p = node.number("p", 2)
    axes = tuple(range(2, len(builder.value(x).shape)))
    total = write("reduce_sum", write("pow", write("abs", x), p), axes=axes, keepdims=True)
    return [write("pow", total, 1 / p)]


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": _pool,
    "Col2Im": in_float32(_col2im),
    "GlobalLpPool": in_float32(_lp_global),
    "LpPool": in_float32(_lp_pool),
    "MaxPool": _pool,
    "MaxUnpool": _max_unpool,
}
