"""In: an operator name. Out: its `OpSpec`. Always: every node of a verified graph names an operator of this table.

Every operator has one result. Layouts: `NCHW` activations have (O, I/groups, KH, KW) weights; `NHWC` activations have
(KH, KW, I/groups, O) weights, or (KH, KW, C) when the convolution is depthwise (groups = C = O). `pads` is (top, left,
bottom, right). Passes remove `batch_norm`, `quantize` and `dequantize`, so nothing lowers them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from retune.compiler.errors import DefinitionError
from retune.compiler.graph import infer, infer_places
from retune.compiler.graph.ir import Attribute, Graph, Node, Value


class FusionKind(Enum):
    """How an operator may share a kernel with its neighbours."""

    ELEMENTWISE = "elementwise"  # result element i reads operand element i
    BROADCAST = "broadcast"  # as above, after broadcasting
    INJECTIVE = "injective"  # each result element reads one operand element
    REDUCTION = "reduction"  # each result element reads many
    COMPLEX = "complex"  # worth tiling; takes element-wise followers into its kernel
    OPAQUE = "opaque"  # several stages; a kernel of its own


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operator: its operands (None: one or more), the types of its attributes, fusion kind, shape rule, meaning."""

    name: str
    operands: int | None
    kind: FusionKind
    rule: infer.Rule
    meaning: str
    attrs: Mapping[str, type] = field(default_factory=dict)


_UNARY = {
    "relu": "max(x, 0)",
    "sigmoid": "1 / (1 + exp(-x))",
    "tanh": "hyperbolic tangent",
    "exp": "e to the x",
    "log": "natural logarithm",
    "sqrt": "square root",
    "erf": "Gauss error function",
    "neg": "-x",
    "abs": "magnitude",
    "floor": "largest whole number not above x",
    "ceil": "smallest whole number not below x",
    "round": "nearest whole number, ties to even",
    **{name: f"{name} of x, in radians" for name in ("sin", "cos", "tan", "sinh", "cosh")},
    **{name: f"the inverse of {name[1:]}" for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "sign": "-1, 0 or 1",
    "silu": "x / (1 + exp(-x))",
    "hard_swish": "x * min(max(x / 6 + 1 / 2, 0), 1)",
    "gelu": "x times the share of a standard normal distribution below x",
    "gelu_tanh": "the same with tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)) in place of erf(x / sqrt(2))",
    "bit_not": "every bit turned, of a bool the other one",
    "identity": "a copy; only where a graph output would be an input, a constant or another output",
}
_BINARY = {
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "div": "a / b; integers truncate towards zero",
    "pow": "a to the b",
    "maximum": "the larger",
    "minimum": "the smaller",
    "mod": "what is left of a after division by b, with the sign of b",
    "fmod": "what is left of a after division by b, with the sign of a",
    "bit_and": "bits that both have; of bools whether both hold",
    "bit_or": "bits that one has; of bools whether one holds",
    "bit_xor": "bits that one of the two has; of bools whether they differ",
    "shift_left": "the bits of a moved up by b, of which b fall out",
    "shift_right": "the bits of a moved down by b, of which b fall out",
}
_COMPARISONS = {"equal": "whether a = b", "less": "whether a < b", "less_equal": "whether a <= b"}
_REDUCE = {
    "reduce_prod": "product",
    "reduce_sum": "sum",
    "reduce_mean": "mean",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
}

_CONV = {"strides": tuple, "pads": tuple, "dilations": tuple, "groups": int, "layout": str}
_MAX_POOL = {"kernel": tuple, "strides": tuple, "pads": tuple, "dilations": tuple, "layout": str}
_AVG_POOL = {"kernel": tuple, "strides": tuple, "pads": tuple, "count_include_pad": bool, "layout": str}
_TOP_K = {"axis": int, "k": int, "largest": bool}
_KIND = FusionKind

_SPECS = (
    *(OpSpec(name, 1, _KIND.ELEMENTWISE, infer.same_as_first, meaning) for name, meaning in _UNARY.items()),
    OpSpec("leaky_relu", 1, _KIND.ELEMENTWISE, infer.same_as_first, "x, or alpha * x below 0", {"alpha": float}),
    OpSpec("clip", 1, _KIND.ELEMENTWISE, infer.same_as_first, "min(max(x, low), high)", {"low": float, "high": float}),
    OpSpec("cast", 1, _KIND.ELEMENTWISE, infer.cast, "x in another dtype; floats truncate to ints", {"dtype": str}),
    OpSpec("bits", 1, _KIND.ELEMENTWISE, infer.bits, "what x is in memory as another dtype", {"dtype": str}),
    OpSpec("is_nan", 1, _KIND.ELEMENTWISE, infer.predicate, "whether x is not a number"),
    *(OpSpec(name, 2, _KIND.BROADCAST, infer.broadcast, meaning) for name, meaning in _BINARY.items()),
    *(OpSpec(name, 2, _KIND.BROADCAST, infer.comparison, meaning) for name, meaning in _COMPARISONS.items()),
    OpSpec("where", 3, _KIND.BROADCAST, infer.where, "b where the condition a holds, else c"),
    *(
        OpSpec(name, 1, _KIND.REDUCTION, infer.reduction, f"{what} over axes", {"axes": tuple, "keepdims": bool})
        for name, what in _REDUCE.items()
    ),
    OpSpec("conv2d", 2, _KIND.COMPLEX, infer.convolution, "grouped 2-D convolution of (x, weight)", _CONV),
    OpSpec("conv3d", 2, _KIND.COMPLEX, infer.convolution, "the same in 3-D: layouts NCDHW and NDHWC", _CONV),
    OpSpec(
        "conv_transpose2d",
        2,
        _KIND.COMPLEX,
        infer.conv_transpose2d,
        "y[stride * i + k - pad] += x[i] * weight[k], of weights (I, O, KH, KW), or (KH, KW, I, O) in NHWC",
        {"strides": tuple, "pads": tuple, "layout": str},
    ),
    OpSpec(
        "conv_phases2d",
        2,
        _KIND.COMPLEX,
        infer.phased_convolution,
        "row y * stride + a, column x * stride + b of a transposed convolution at (n, y, a, x, b, o), `pads` of which "
        "are cut off; tap a + stride * r of the weight (KH, KW, I, O) is the r-th that makes phase a",
        {"strides": tuple, "pads": tuple, "size": tuple, "layout": str},
    ),
    OpSpec(
        "winograd_conv2d",
        2,
        _KIND.COMPLEX,
        infer.winograd_convolution,
        "conv2d NHWC, stride 1, of weights transformed for tiles of `tile` results a side, (A, A, I, O)",
        {"pads": tuple, "tile": int},
    ),
    OpSpec("dense", 2, _KIND.COMPLEX, infer.dense, "(M, K) x (K, N)"),
    OpSpec("batch_matmul", 2, _KIND.COMPLEX, infer.batch_matmul, "(B, M, K) x (B, K, N)"),
    OpSpec(
        "contract",
        2,
        _KIND.COMPLEX,
        infer.contract,
        "sum of products of (a, b) in Einstein's notation: a letter for each axis, summed over those not in `result`",
        {"left": str, "right": str, "result": str},
    ),
    OpSpec(
        "qconv2d",
        2,
        _KIND.COMPLEX,
        infer.byte_convolution,
        "conv2d of bytes, summed in int32; padding, also in channels that only the weight has, holds pad_value",
        {**_CONV, "pad_value": int},
    ),
    OpSpec("qdense", 2, _KIND.COMPLEX, infer.byte_product, "dense of bytes, summed in int32"),
    OpSpec("qbatch_matmul", 2, _KIND.COMPLEX, infer.byte_product, "batch_matmul of bytes, summed in int32"),
    OpSpec(
        "quantize",
        3,
        _KIND.OPAQUE,
        infer.quantize,
        "round(x / scale) + zero, clipped, of (x, scale, zero); one scale, or one for each place of an axis",
        {"axis": int},
    ),
    OpSpec("dequantize", 3, _KIND.OPAQUE, infer.dequantize, "(x - zero) * scale of (x, scale, zero)", {"axis": int}),
    OpSpec("max_pool2d", 1, _KIND.REDUCTION, infer.pool2d, "maximum of a window; padding never wins", _MAX_POOL),
    OpSpec(
        "avg_pool2d",
        1,
        _KIND.REDUCTION,
        infer.pool2d,
        "window sum over the elements inside x, or over all of the window with count_include_pad",
        _AVG_POOL,
    ),
    OpSpec("softmax", 1, _KIND.REDUCTION, infer.softmax, "exp(x - max) / sum along an axis", {"axis": int}),
    OpSpec("log_softmax", 1, _KIND.REDUCTION, infer.softmax, "x - max - log(sum) along an axis", {"axis": int}),
    OpSpec(
        "normalize",
        1,
        _KIND.REDUCTION,
        infer.normalize,
        "c / sqrt(mean(c * c) + epsilon) over axes, with c = x - mean(x) when centred, else x",
        {"axes": tuple, "epsilon": float, "centred": bool},
    ),
    OpSpec(
        "batch_norm",
        5,
        _KIND.OPAQUE,
        infer.batch_norm,
        "(x - mean) / sqrt(variance + epsilon) * scale + bias of (x, scale, bias, mean, variance) along an axis",
        {"axis": int, "epsilon": float},
    ),
    OpSpec("reshape", 1, _KIND.INJECTIVE, infer.reshape, "the same elements in row-major order", {"shape": tuple}),
    OpSpec("transpose", 1, _KIND.INJECTIVE, infer.transpose, "result axis i is operand axis perm[i]", {"perm": tuple}),
    OpSpec("concat", None, _KIND.INJECTIVE, infer.concat, "operands end to end along an axis", {"axis": int}),
    OpSpec(
        "slice",
        1,
        _KIND.INJECTIVE,
        infer.slice_,
        "for every axis elements start, start + step, ... below stop; steps are positive",
        {"starts": tuple, "stops": tuple, "steps": tuple},
    ),
    OpSpec(
        "pad",
        1,
        _KIND.INJECTIVE,
        infer.pad,
        "a border of `value`; one entry an axis",
        {"pads_before": tuple, "pads_after": tuple, "value": float},
    ),
    *(
        OpSpec(name, 1, _KIND.REDUCTION, infer_places.arg_reduction, meaning, {"axis": int, "keepdims": bool})
        for name, meaning in (
            ("arg_max", "place of the first largest element along an axis"),
            ("arg_min", "place of the first smallest element along an axis"),
        )
    ),
    OpSpec("top_k", 1, _KIND.OPAQUE, infer_places.top_k, "places of the k largest along an axis, in order", _TOP_K),
    OpSpec(
        "gather",
        2,
        _KIND.INJECTIVE,
        infer_places.gather,
        "slices of x along an axis, one for each index; negative ones count from the end, those outside are clipped",
        {"axis": int},
    ),
    OpSpec(
        "gather_elements",
        2,
        _KIND.INJECTIVE,
        infer_places.gather_elements,
        "for each index the element of x at the index along an axis, and at the index's own place along the others",
        {"axis": int},
    ),
    OpSpec(
        "gather_nd",
        2,
        _KIND.INJECTIVE,
        infer_places.gather_nd,
        "slices of x, one for each row of indices into its dimensions after the first batch_dims",
        {"batch_dims": int},
    ),
    OpSpec(
        "scatter_elements",
        3,
        _KIND.OPAQUE,
        infer_places.scatter_elements,
        "x with updates joined to it at the indices along an axis; the last one wins where nothing joins them",
        {"axis": int, "reduction": str},
    ),
    OpSpec(
        "scatter_nd",
        3,
        _KIND.OPAQUE,
        infer_places.scatter_nd,
        "x with slices of updates joined to it, each at a row of indices into the first dimensions of x",
        {"reduction": str},
    ),
    OpSpec("broadcast_to", 1, _KIND.INJECTIVE, infer.broadcast_to, "x repeated to a shape", {"shape": tuple}),
)

OPS: Mapping[str, OpSpec] = {spec.name: spec for spec in _SPECS}


def infer_value(node: Node, operands: tuple[Value, ...]) -> Value:
    """Check a node against its operator and describe its result.

    Raises: DefinitionError when the operator is unknown, or operands or attributes do not fit it.
    """
    spec = OPS.get(node.op)
    if spec is None:
        raise DefinitionError(f"node {node.name or node.op!r}: no operator {node.op!r}")
    if len(operands) != spec.operands and not (spec.operands is None and operands):
        raise infer.misfit(node, operands, f"takes {spec.operands} operands")
    if node.attrs.keys() != spec.attrs.keys():
        raise infer.misfit(node, operands, f"attributes must be {sorted(spec.attrs)}, not {sorted(node.attrs)}")
    for key, kind in spec.attrs.items():
        if not _is_a(node.attrs[key], kind):
            raise infer.misfit(node, operands, f"attribute {key} must be a {kind.__name__}, not {node.attrs[key]!r}")
    shape, dtype = spec.rule(node, operands)
    return Value(node.output, shape, dtype)


def verify(graph: Graph) -> None:
    """`Graph.verify`, and every node agrees with its operator's attributes and shape rule.

    Raises: DefinitionError that names the node at fault.
    """
    graph.verify()
    for node in graph.nodes:
        found = infer_value(node, tuple(graph.values[name] for name in node.inputs))
        if found != graph.values[node.output]:
            raise DefinitionError(f"graph {graph.name}: {node} gives {found}, not {graph.values[node.output]}")


def _is_a(value: Attribute, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(item, int) for item in value)
    return type(value) is kind
