"""In: a graph and arrays for its inputs. Out: the arrays of its outputs. Always: plain NumPy, no pass and no kernel.

This is the oracle of the tests and what constant folding computes with; it is slow and has no other use.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from retune.compiler.dtype import is_float
from retune.compiler.errors import DefinitionError
from retune.compiler.graph.evaluate_places import PLACE_EVALUATORS
from retune.compiler.graph.ir import Array, Graph, Node, Value
from retune.compiler.graph.ops import infer_value
from retune.compiler.te.ops.winograd import transform_matrices

Evaluator = Callable[[Node, Sequence[Array]], Array]


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """Run `graph` and return its outputs in order.

    Raises: DefinitionError when an input is missing or has another shape or dtype than the graph says.
    """
    arrays: dict[str, Array] = dict(graph.constants)
    for value in graph.inputs:
        if value.name not in inputs:
            raise DefinitionError(f"graph {graph.name}: no array for input {value}")
        array = inputs[value.name]
        if array.shape != value.shape or array.dtype.name != value.dtype:
            raise DefinitionError(f"graph {graph.name}: input {value} got {array.dtype.name}{list(array.shape)}")
        arrays[value.name] = array
    last_reader = {name: node for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        arrays[node.output] = evaluate_node(node, [arrays[name] for name in node.inputs])
        for name in set(node.inputs):
            if last_reader[name] is node and name not in graph.outputs:
                del arrays[name]
    return tuple(arrays[name] for name in graph.outputs)


def evaluate_node(node: Node, operands: Sequence[Array]) -> Array:
    """The result of one node for concrete operands, in the operands' dtype."""
    with np.errstate(all="ignore"):
        result = np.asarray(EVALUATORS[node.op](node, operands))
    described = tuple(Value(name, a.shape, a.dtype.name) for name, a in zip(node.inputs, operands, strict=True))
    dtype = infer_value(node, described).dtype
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(result.astype(dtype, copy=False)).reshape(result.shape)


def _unary(function: Callable[[Array], Array]) -> Evaluator:
    return lambda _, operands: function(operands[0])


def _binary(function: Callable[[Array, Array], Array]) -> Evaluator:
    return lambda _, operands: function(operands[0], operands[1])


def _reduce(function: Callable[..., Array]) -> Evaluator:
    return lambda node, operands: function(operands[0], axis=node.ints("axes"), keepdims=node.flag("keepdims"))


def _extreme(function: Callable[..., Array], *, largest: bool) -> Evaluator:
    """The largest or smallest; of no elements the least or greatest number there is."""

    def evaluated(node: Node, operands: Sequence[Array]) -> Array:
        (x,) = operands
        if x.size:
            return function(x, axis=node.ints("axes"), keepdims=node.flag("keepdims"))
        if x.dtype == bool:
            bound: float = not largest
        elif x.dtype.kind in "iu":
            bound = np.iinfo(x.dtype).min if largest else np.iinfo(x.dtype).max
        else:
            bound = -math.inf if largest else math.inf
        return function(x, axis=node.ints("axes"), keepdims=node.flag("keepdims"), initial=x.dtype.type(bound))

    return evaluated


def _mean(node: Node, operands: Sequence[Array]) -> Array:
    if operands[0].size:
        return _reduce(np.mean)(node, operands)
    return np.full(_reduce(np.sum)(node, operands).shape, math.nan)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


def _divide(a: Array, b: Array) -> Array:
    if is_float(a.dtype.name):
        return np.asarray(a / b)
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) ^ (b < 0), -quotient, quotient))


def _leaky_relu(node: Node, operands: Sequence[Array]) -> Array:
    (x,) = operands
    return np.where(x < 0, x * x.dtype.type(node.number("alpha")), x)


def _clip(node: Node, operands: Sequence[Array]) -> Array:
    return np.minimum(np.maximum(operands[0], node.number("low")), node.number("high"))


def _softmax(node: Node, operands: Sequence[Array]) -> Array:
    (x,) = operands
    axis = node.integer("axis")
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _log_softmax(node: Node, operands: Sequence[Array]) -> Array:
    (x,) = operands
    axis = node.integer("axis")
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _normalize(node: Node, operands: Sequence[Array]) -> Array:
    (x,) = operands
    axes = node.ints("axes")
    if node.flag("centred"):
        x = x - x.mean(axis=axes, keepdims=True)
    return np.asarray(x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + x.dtype.type(node.number("epsilon"))))


def _contract(node: Node, operands: Sequence[Array]) -> Array:
    """A plain product of matrices, which is what makes it quick, between transposes."""
    left, right, result = node.text("left"), node.text("right"), node.text("result")
    summed = [letter for letter in left if letter not in result]
    shared = [letter for letter in left if letter in right and letter in result]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    a, b = operands
    extents = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}

    def extent(letters: Sequence[str]) -> int:
        return math.prod(extents[letter] for letter in letters)

    a = a.transpose([left.index(letter) for letter in (*shared, *rows, *summed)])
    b = b.transpose([right.index(letter) for letter in (*shared, *summed, *columns)])
    product = np.matmul(
        a.reshape(extent(shared), extent(rows), extent(summed)),
        b.reshape(extent(shared), extent(summed), extent(columns)),
    )
    order = (*shared, *rows, *columns)
    product = product.reshape([extents[letter] for letter in order])
    return np.asarray(product.transpose([order.index(letter) for letter in result]))


def _gelu(x: Array) -> Array:
    return np.asarray(x * (_erf(np.asarray(x * math.sqrt(0.5))) + 1) / 2)


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(x * (np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)) + 1) / 2)


def _batch_norm(node: Node, operands: Sequence[Array]) -> Array:
    x, *statistics = operands
    column = [1] * x.ndim
    column[node.integer("axis")] = -1
    scale, bias, mean, variance = (s.reshape(column) for s in statistics)
    return np.asarray((x - mean) / np.sqrt(variance + node.number("epsilon")) * scale + bias)


def _channels_last(node: Node, x: Array) -> Array:
    return x if node.text("layout").endswith("C") else np.moveaxis(x, 1, -1)


def _from_channels_last(node: Node, x: Array) -> Array:
    return x if node.text("layout").endswith("C") else np.moveaxis(x, -1, 1)


def _window_view(node: Node, x: Array, kernel: tuple[int, ...], dilations: tuple[int, ...], fill: float) -> Array:
    """All windows of the channels-last `x`: (N, OH, OW, C, KH, KW), or one dimension more of each in 3-D."""
    rank = len(kernel)
    before, after = node.ints("pads")[:rank], node.ints("pads")[rank:]
    padded = np.pad(x, ((0, 0), *zip(before, after, strict=True), (0, 0)), constant_values=fill)
    reach = tuple(dilation * (extent - 1) + 1 for extent, dilation in zip(kernel, dilations, strict=True))
    windows = sliding_window_view(padded, reach, axis=tuple(range(1, rank + 1)))
    whole = slice(None)
    strides = (slice(None, None, stride) for stride in node.ints("strides"))
    return np.asarray(windows[(whole, *strides, whole, *(slice(None, None, step) for step in dilations))])


def _convolution(node: Node, operands: Sequence[Array]) -> Array:
    x, weight = operands
    groups = node.integer("groups")
    rank = x.ndim - 2
    if node.text("layout").startswith("NC"):
        weight = weight.transpose(*range(2, rank + 2), 1, 0)
    elif weight.ndim == rank + 1:
        weight = weight[..., None, :]
    fill = node.integer("pad_value") if "pad_value" in node.attrs else 0
    windows = _window_view(node, _channels_last(node, x), weight.shape[:rank], node.ints("dilations"), fill)
    windows = np.moveaxis(windows, rank + 1, -1)
    taken, made = weight.shape[-2], weight.shape[-1] // groups
    parts = [
        np.tensordot(
            windows[..., g * taken : (g + 1) * taken],
            weight[..., g * made : (g + 1) * made],
            axes=(tuple(range(rank + 1, 2 * rank + 2)), tuple(range(rank + 1))),
        )
        for g in range(groups)
    ]
    return _from_channels_last(node, np.concatenate(parts, axis=-1))


def _byte_convolution(node: Node, operands: Sequence[Array]) -> Array:
    x, weight = (operand.astype(np.int32) for operand in operands)
    last = node.text("layout").endswith("C")
    missing = weight.shape[-2 if last else 1] - x.shape[-1 if last else 1] if node.integer("groups") == 1 else 0
    border = [(0, 0)] * x.ndim
    border[-1 if last else 1] = (0, missing)
    return _convolution(node, [np.pad(x, border, constant_values=node.integer("pad_value")), weight])


def _byte_product(node: Node, operands: Sequence[Array]) -> Array:
    del node
    return np.asarray(np.matmul(*(operand.astype(np.int32) for operand in operands)))


def _columns(node: Node, operands: Sequence[Array]) -> list[Array]:
    """The scale and the zero point as they combine with the numbers."""
    x, *others = operands
    column = [-1 if axis == node.integer("axis") else 1 for axis in range(x.ndim)]
    return [part.reshape(column if part.size > 1 else ()) for part in others]


def _quantize(node: Node, operands: Sequence[Array]) -> Array:
    scale, zero = _columns(node, operands)
    limits = np.iinfo(operands[2].dtype)
    return np.clip(np.round(operands[0] / scale) + zero, limits.min, limits.max)


def _dequantize(node: Node, operands: Sequence[Array]) -> Array:
    scale, zero = _columns(node, operands)
    return np.asarray((operands[0].astype(np.int64) - zero).astype(scale.dtype) * scale)


def _conv_transpose2d(node: Node, operands: Sequence[Array]) -> Array:
    x, weight = operands
    if node.text("layout") == "NCHW":
        weight = weight.transpose(2, 3, 0, 1)
    x = _channels_last(node, x)
    strides, pads, kernel = node.ints("strides"), node.ints("pads"), weight.shape[:2]
    full = [(n - 1) * stride + size for n, stride, size in zip(x.shape[1:3], strides, kernel, strict=True)]
    longer = [max(0, -pad) for pad in pads[2:]]
    whole = np.zeros((x.shape[0], full[0] + longer[0], full[1] + longer[1], weight.shape[3]), x.dtype)
    for row, column in np.ndindex(*kernel):
        rows = slice(row, row + full[0] - kernel[0] + 1, strides[0])
        columns = slice(column, column + full[1] - kernel[1] + 1, strides[1])
        whole[:, rows, columns] += x @ weight[row, column]
    ends = [size - pad for size, pad in zip(full, pads[2:], strict=True)]
    return _from_channels_last(node, whole[:, pads[0] : ends[0], pads[1] : ends[1]])


def _phased_convolution(node: Node, operands: Sequence[Array]) -> Array:
    x, weight = operands
    strides, pads, size = node.ints("strides"), node.ints("pads"), node.ints("size")
    result = np.zeros((x.shape[0], size[0], strides[0], size[1], strides[1], weight.shape[3]), x.dtype)
    for row, column in np.ndindex(*weight.shape[:2]):
        phases, reads, writes = [], [], []
        for tap, stride, cut, have, want in zip((row, column), strides, pads, x.shape[1:3], size, strict=True):
            shift = (tap % stride + cut) // stride - tap // stride  # the element that the first one reads
            first, last = max(0, -shift), min(want, have - shift)
            phases.append(tap % stride)
            writes.append(slice(first, max(first, last)))
            reads.append(slice(first + shift, max(first, last) + shift))
        product = x[:, reads[0], reads[1]] @ weight[row, column]
        result[:, writes[0], phases[0], writes[1], phases[1]] += product
    return result


def _winograd(node: Node, operands: Sequence[Array]) -> Array:
    """Tile by tile, in the precision of the operands."""
    x, weight = operands
    tile, (top, left, bottom, right) = node.integer("tile"), node.ints("pads")
    a, b = (np.array(matrix, weight.dtype) for matrix in transform_matrices(tile, 3)[:2])
    height, width = x.shape[1] + top + bottom - 2, x.shape[2] + left + right - 2
    below, beside = -height % tile, -width % tile
    padded = np.pad(x, ((0, 0), (top, bottom + below), (left, right + beside), (0, 0)))
    windows = sliding_window_view(padded, (tile + 2, tile + 2), axis=(1, 2))[:, ::tile, ::tile]
    turned = np.einsum("ie,bhwcij,jf->efbhwc", b, windows, b, optimize=True)
    products = np.einsum("efbhwc,efco->efbhwo", turned, weight, optimize=True)
    tiles = np.einsum("em,efbhwo,fn->bhmwno", a, products, a, optimize=True)
    whole = tiles.reshape(x.shape[0], height + below, width + beside, weight.shape[3])
    return np.ascontiguousarray(whole[:, :height, :width])


def _max_pool2d(node: Node, operands: Sequence[Array]) -> Array:
    x = _channels_last(node, operands[0])
    lowest = -math.inf if is_float(x.dtype.name) else np.iinfo(x.dtype).min
    windows = _window_view(node, x, node.ints("kernel"), node.ints("dilations"), lowest)
    return _from_channels_last(node, windows.max(axis=(-2, -1)))


def _avg_pool2d(node: Node, operands: Sequence[Array]) -> Array:
    x = _channels_last(node, operands[0])
    kernel = node.ints("kernel")
    total = _window_view(node, x, kernel, (1, 1), 0).sum(axis=(-2, -1))
    if node.flag("count_include_pad"):
        return _from_channels_last(node, np.asarray(total / (kernel[0] * kernel[1])))
    inside = _window_view(node, np.ones_like(x), kernel, (1, 1), 0).sum(axis=(-2, -1))
    return _from_channels_last(node, np.asarray(total / inside))


def _slice(node: Node, operands: Sequence[Array]) -> Array:
    bounds = zip(node.ints("starts"), node.ints("stops"), node.ints("steps"), strict=True)
    return np.asarray(operands[0][tuple(slice(*bound) for bound in bounds)])


def _pad(node: Node, operands: Sequence[Array]) -> Array:
    border = tuple(zip(node.ints("pads_before"), node.ints("pads_after"), strict=True))
    return np.pad(operands[0], border, constant_values=node.number("value"))


EVALUATORS: Mapping[str, Evaluator] = {
    "relu": _unary(lambda x: np.maximum(x, 0)),
    "sigmoid": _unary(_sigmoid),
    "tanh": _unary(np.tanh),
    "silu": _unary(lambda x: x * _sigmoid(x)),
    "hard_swish": _unary(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "gelu": _unary(_gelu),
    "gelu_tanh": _unary(_gelu_tanh),
    "exp": _unary(np.exp),
    "log": _unary(np.log),
    "sqrt": _unary(np.sqrt),
    "erf": _unary(_erf),
    "neg": _unary(np.negative),
    "abs": _unary(np.abs),
    "floor": _unary(np.floor),
    "ceil": _unary(np.ceil),
    "round": _unary(np.round),
    "identity": _unary(np.copy),
    **{
        name: _unary(getattr(np, name.replace("a", "arc", 1)))
        for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")
    },
    **{name: _unary(getattr(np, name)) for name in ("sin", "cos", "tan", "sinh", "cosh")},
    "sign": _unary(np.sign),
    "bit_not": _unary(np.invert),
    "is_nan": _unary(np.isnan),
    "leaky_relu": _leaky_relu,
    "clip": _clip,
    "bits": lambda node, operands: operands[0].copy().view(node.text("dtype")),
    "cast": lambda node, operands: operands[0].astype(node.text("dtype")),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _binary(_divide),
    "pow": _binary(np.power),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "mod": _binary(np.mod),
    "fmod": _binary(np.fmod),
    "bit_and": _binary(np.bitwise_and),
    "bit_or": _binary(np.bitwise_or),
    "bit_xor": _binary(np.bitwise_xor),
    "shift_left": _binary(np.left_shift),
    "shift_right": _binary(np.right_shift),
    "equal": _binary(np.equal),
    "less": _binary(np.less),
    "less_equal": _binary(np.less_equal),
    "where": lambda _, operands: np.where(*operands),
    **PLACE_EVALUATORS,
    "reduce_sum": _reduce(np.sum),
    "reduce_mean": _mean,
    "reduce_prod": _reduce(np.prod),
    "reduce_max": _extreme(np.max, largest=True),
    "reduce_min": _extreme(np.min, largest=False),
    "conv2d": _convolution,
    "conv3d": _convolution,
    "qconv2d": _byte_convolution,
    "qdense": _byte_product,
    "qbatch_matmul": _byte_product,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv_transpose2d": _conv_transpose2d,
    "conv_phases2d": _phased_convolution,
    "winograd_conv2d": _winograd,
    "dense": _binary(np.matmul),
    "batch_matmul": _binary(np.matmul),
    "contract": _contract,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "normalize": _normalize,
    "batch_norm": _batch_norm,
    "reshape": lambda node, operands: operands[0].reshape(node.ints("shape")),
    "transpose": lambda node, operands: operands[0].transpose(node.ints("perm")),
    "concat": lambda node, operands: np.concatenate(operands, axis=node.integer("axis")),
    "slice": _slice,
    "pad": _pad,
    "broadcast_to": lambda node, operands: np.broadcast_to(operands[0], node.ints("shape")),
}
