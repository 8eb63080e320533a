"""Converters of ONNX reductions, softmax and normalizations. Axes are normalized to ascending non-negative numbers."""

from collections.abc import Mapping, Sequence
from math import inf, prod

from onnx import helper

from retune.compiler.core.dtype import is_float, sum_type
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, Formula, cast_to, formula_of, in_float32
from retune.compiler.graph.builder import GraphBuilder


def _reduce(op: str, axes_since: int, *, before: str = "", after: str = "") -> Converter:
    """A reduction; `before` is applied to the elements first ("square": x * x), `after` last."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, x = formula_of(builder, node)
        axes, dtype = _axes(builder, node, axes_since), builder.value(x).dtype
        if before:
            x = write("mul", x, x) if before == "square" else write(before, x)
        if axes:
            x = write(op, x, axes=axes, keepdims=bool(node.integer("keepdims", 1)))
        if after:
            x = write(after, x if is_float(dtype) else write("cast", x, dtype="float64"))
        return [cast_to(builder, x, dtype)]

    return convert


def _axes(builder: GraphBuilder, node: OnnxNode, since: int) -> tuple[int, ...]:
    """The axes of a reduction, which are an attribute before operator set `since`."""
    rank = len(node.operand(builder, 0).shape)
    axes = node.axes(builder, 1, since)
    if not axes and node.integer("noop_with_empty_axes", 0):
        return ()
    return tuple(sorted({node.axis(axis, rank) for axis in axes or range(rank)}))


def _log_sum_exp(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """peak + log(sum(exp(x - peak))) with the maximum as peak: no power overflows."""
    x, axes = node.operand(builder, 0), _axes(builder, node, 18)
    wide = x.name if is_float(x.dtype) else cast_to(builder, x.name, "float64")
    write = Formula(builder, node, builder.value(wide).dtype)
    if axes:
        peak = write("reduce_max", wide, axes=axes, keepdims=True)
        # The difference of two infinities would be NaN.
        peak = write("where", write("less", write("abs", peak), inf), peak, 0)
        total = write("reduce_sum", write("exp", write("sub", wide, peak)), axes=axes, keepdims=True)
        wide = write("add", write("log", total), peak)
        if not node.integer("keepdims", 1):
            shape = tuple(extent for axis, extent in enumerate(x.shape) if axis not in axes)
            wide = write("reshape", wide, shape=shape)
    return [cast_to(builder, wide, x.dtype)]


def _global(op: str) -> Converter:
    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        write, x = formula_of(builder, node)
        return [write(op, x, axes=tuple(range(2, len(builder.value(x).shape))), keepdims=True)]

    return convert


def _softmax(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    axis = node.axis(node.integer("axis", 1 if node.opset < 13 else -1), len(shape))
    # Before operator set 13 all dimensions from the axis on were merged.
    flat = node.opset < 13 and axis < len(shape) - 1
    if flat:
        x = write("reshape", x, shape=(prod(shape[:axis]), prod(shape[axis:])))
        axis = 1
    if node.op_type == "Hardmax" and builder.value(x).size != 0:
        whole = builder.value(x).shape
        column = [extent if index == axis else 1 for index, extent in enumerate(whole)]
        hit = write("equal", write("arg_max", x, axis=axis, keepdims=True), builder.arange(whole[axis], column))
        x = write("cast", hit, dtype=builder.value(x).dtype)
    elif node.op_type == "LogSoftmax":
        # Shifted by the maximum: no exponential overflows, and the sum is at least 1.
        shifted = write("sub", x, write("reduce_max", x, axes=(axis,), keepdims=True))
        x = write("sub", shifted, write("log", write("reduce_sum", write("exp", shifted), axes=(axis,), keepdims=True)))
    else:
        x = write("softmax", x, axis=axis)
    return [write("reshape", x, shape=shape) if flat else x]


def _normalize(builder: GraphBuilder, node: OnnxNode, x: str, axes: tuple[int, ...]) -> str:
    """(x - mean) / sqrt(variance + epsilon) over `axes`."""
    write, _ = formula_of(builder, node)
    centred = write("sub", x, write("reduce_mean", x, axes=axes, keepdims=True))
    # Two passes: mean(x²) - mean(x)² would cancel where the mean is large.
    variance = write("reduce_mean", write("mul", centred, centred), axes=axes, keepdims=True)
    if node.op_type == "MeanVarianceNormalization":
        return write("div", centred, write("add", write("sqrt", variance), 1e-9))
    return write("div", centred, write("sqrt", write("add", variance, node.number("epsilon", 1e-5))))


def _mean_variance_normalization(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    axes = tuple(sorted(node.axis(axis, len(x.shape)) for axis in node.ints("axes") or (0, 2, 3)))
    return [_normalize(builder, node, x.name, axes)]


def _shift(builder: GraphBuilder, write: Formula, x: str, bias: str) -> str:
    """x + bias; a bias of zeros, which could only change the sign of a zero, is dropped."""
    array = builder.array(bias)
    return x if array is not None and not array.any() else write("add", x, bias)


def _layer_normalization(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    rank = len(builder.value(x).shape)
    axes = tuple(range(node.axis(node.integer("axis", -1), rank), rank))
    result = write("mul", _normalize(builder, node, x, axes), node.operand(builder, 1).name)
    result = _shift(builder, write, result, node.inputs[2]) if node.has_input(2) else result
    if not any(node.outputs[1:]):
        return [result]
    stash = helper.tensor_dtype_to_np_dtype(node.integer("stash_type", 1)).name
    write, x = Formula(builder, node, stash), cast_to(builder, x, stash)
    mean = write("reduce_mean", x, axes=axes, keepdims=True)
    centred = write("sub", x, mean)
    variance = write("reduce_mean", write("mul", centred, centred), axes=axes, keepdims=True)
    deviation = write("sqrt", write("add", variance, node.number("epsilon", 1e-5)))
    return [result, mean, write("div", 1, deviation)]


def _rms_normalization(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """x / sqrt(mean(x²) + epsilon) * scale in the type of `scale`, and the factor of each row, both from float32."""
    x, scale = node.operand(builder, 0), node.operand(builder, 1)
    axes = tuple(range(node.axis(node.integer("axis", -1), len(x.shape)), len(x.shape)))
    write = Formula(builder, node, sum_type(x.dtype))
    wide = cast_to(builder, x.name, sum_type(x.dtype))
    mean = write("reduce_mean", write("mul", wide, wide), axes=axes, keepdims=True)
    deviation = write("sqrt", write("add", mean, node.number("epsilon", 1e-5)))
    result = write("mul", write("div", wide, deviation), cast_to(builder, scale.name, sum_type(x.dtype)))
    return [cast_to(builder, result, scale.dtype), write("div", 1, deviation)]


def _lp_normalization(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """x / norm; where the norm is 0 the result is 0."""
    write, x = formula_of(builder, node)
    p = node.integer("p", 2)
    axes = (node.axis(node.integer("axis", -1), len(builder.value(x).shape)),)
    if p not in (1, 2):
        raise node.unsupported(f"p must be 1 or 2, not {p}")
    terms = write("abs", x) if p == 1 else write("mul", x, x)
    total = write("reduce_sum", terms, axes=axes, keepdims=True)
    norm = total if p == 1 else write("sqrt", total)
    return [write("where", write("equal", norm, 0), 0, write("div", x, norm))]


def _local_response(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """x / (bias + alpha / size * sum of squares of neighboring channels)^beta."""
    write, x = formula_of(builder, node)
    n, channels, *extents = builder.value(x).shape
    if builder.value(x).size == 0:
        return [x]
    size = node.integer("size", 1)
    rows = 1
    for extent in extents:
        rows *= extent
    squares = write("reshape", write("mul", x, x), shape=(n, 1, channels, rows))
    before = (size - 1) // 2
    window = {"kernel": (size, 1), "strides": (1, 1), "pads": (before, 0, size - 1 - before, 0), "layout": "NCHW"}
    # The mean divides by `size` everywhere, including the border, as ONNX's formula does: hence the padding counts.
    mean = write("avg_pool2d", squares, **window, count_include_pad=True)
    scaled = write("mul", write("reshape", mean, shape=(n, channels, *extents)), node.number("alpha", 1e-4))
    base = write("add", scaled, node.number("bias", 1.0))
    return [write("div", x, write("pow", base, node.number("beta", 0.75)))]


def _group_normalization(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    n, channels, *spatial = shape = builder.value(x).shape
    count = node.integer("num_groups", 1)
    split = write("reshape", x, shape=(n, count, channels // count, *spatial))
    result = _normalize(builder, node, split, tuple(range(2, len(shape) + 1)))
    if node.opset >= 21:  # a factor per channel; before, a factor per group
        result, count = write("reshape", result, shape=shape), channels
    column = (count, *(1 for _ in builder.value(result).shape[2:]))
    scale, bias = (write("reshape", node.operand(builder, i).name, shape=column) for i in (1, 2))
    return [write("reshape", write("add", write("mul", result, scale), bias), shape=shape)]


def _instance_normalization(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    column = (shape[1], *(1 for _ in shape[2:]))
    scale, bias = (write("reshape", node.operand(builder, i).name, shape=column) for i in (1, 2))
    result = _normalize(builder, node, x, tuple(range(2, len(shape))))
    return [_shift(builder, write, write("mul", result, scale), bias)]


CONVERTERS: Mapping[str, Converter] = {
    "GlobalAveragePool": _global("reduce_mean"),
    "GlobalMaxPool": _global("reduce_max"),
    "GroupNormalization": in_float32(_group_normalization),
    "Hardmax": _softmax,
    "InstanceNormalization": in_float32(_instance_normalization),
    "LayerNormalization": in_float32(_layer_normalization),
    "LRN": in_float32(_local_response),
    "LogSoftmax": in_float32(_softmax),
    "LpNormalization": in_float32(_lp_normalization),
    "MeanVarianceNormalization": in_float32(_mean_variance_normalization),
    "RMSNormalization": _rms_normalization,
    "ReduceL1": _reduce("reduce_sum", 18, before="abs"),
    "ReduceL2": in_float32(_reduce("reduce_sum", 18, before="square", after="sqrt")),
    "ReduceLogSum": in_float32(_reduce("reduce_sum", 18, after="log")),
    "ReduceLogSumExp": in_float32(_log_sum_exp),
    "ReduceMax": _reduce("reduce_max", 18),
    "ReduceMean": _reduce("reduce_mean", 18),
    "ReduceMin": _reduce("reduce_min", 18),
    "ReduceProd": _reduce("reduce_prod", 18),
    "ReduceSum": _reduce("reduce_sum", 13),
    "ReduceSumSquare": in_float32(_reduce("reduce_sum", 18, before="square")),
    "Softmax": _softmax,
}
