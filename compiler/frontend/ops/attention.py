"""Converters of ONNX's Attention and RotaryEmbedding, and the formulas that the contributed forms of both share.

Heads have the shape (batch, heads, tokens, size). A row of scores that a mask excludes entirely gives zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from onnx import helper

from retune.compiler.core.dtype import sum_type
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, Formula, cast_to
from retune.compiler.frontend.ops.indexing import cut, take
from retune.compiler.frontend.ops.nn import matrix_product
from retune.compiler.graph.builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Heads:
    """Query (B, N, S, H), key (B, K, T, H) and value (B, K, T, V), each of K key heads for N / K query heads."""

    query: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Attended:
    """The output (B, N, S, V), and the scores (B, N, S, T) after each step: the scaled product, the soft cap, the bias,
    and the softmax.
    """

    output: str
    product: str
    capped: str
    biased: str
    weights: str


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How the scores become weights: `scale` times the product, a soft cap if positive, plus each of `biases`.

    `sink` is a logit for each head (N,) that only the softmax's sum contains; "" for none. Scores of halves are float32
    until they are weights. The softmax computes in `precision`, "" for the scores' own.
    """

    scale: float
    cap: float = 0.0
    biases: tuple[str, ...] = ()
    sink: str = ""
    precision: str = ""

    def apply(self, builder: GraphBuilder, node: OnnxNode, heads: Heads) -> Attended:
        """softmax(bias + cap(scale * query keyᵀ)) value."""
        dtype = builder.value(heads.query).dtype
        wide = sum_type(dtype)
        write, query = Formula(builder, node, wide), heads.query
        count = builder.value(query).shape[1]
        key, value = (repeat_heads(builder, name, count) for name in (heads.key, heads.value))
        product = matrix_product(builder, node, query, write("transpose", key, perm=(0, 1, 3, 2)))
        product = cast_to(builder, product, wide)
        if self.scale != 1.0:
            product = write("mul", product, self.scale)
        capped = product
        if self.cap > 0.0:
            capped = write("mul", write("tanh", write("div", product, self.cap)), self.cap)
        biased = capped
        for bias in self.biases:
            biased = write("add", biased, cast_to(builder, bias, wide))
        weights = cast_to(builder, self._softmax(builder, biased), dtype)
        output = matrix_product(builder, node, weights, cast_to(builder, value, dtype))
        product, capped, biased = (cast_to(builder, scores, dtype) for scores in (product, capped, biased))
        return Attended(output, product, capped, biased, weights)

    def _softmax(self, builder: GraphBuilder, scores: str) -> str:
        scores = cast_to(builder, scores, self.precision) if self.precision else scores
        value = builder.value(scores)
        if not self.sink:
            return builder.emit("softmax", [scores], {"axis": 3})
        batch, heads, rows, columns = value.shape
        sink = builder.emit("reshape", [cast_to(builder, self.sink, value.dtype)], {"shape": (1, heads, 1, 1)})
        sink = builder.emit("broadcast_to", [sink], {"shape": (batch, heads, rows, 1)})
        weights = builder.emit("softmax", [builder.emit("concat", [scores, sink], {"axis": 3})], {"axis": 3})
        return cut(builder, weights, 3, 0, columns)


def split_heads(builder: GraphBuilder, x: str, heads: int) -> str:
    """(B, S, heads * H) as (B, heads, S, H)."""
    batch, tokens, hidden = builder.value(x).shape
    x = builder.emit("reshape", [x], {"shape": (batch, tokens, heads, hidden // heads)})
    return builder.emit("transpose", [x], {"perm": (0, 2, 1, 3)})


def join_heads(builder: GraphBuilder, x: str) -> str:
    """(B, N, S, H) as (B, S, N * H)."""
    batch, heads, tokens, size = builder.value(x).shape
    x = builder.emit("transpose", [x], {"perm": (0, 2, 1, 3)})
    return builder.emit("reshape", [x], {"shape": (batch, tokens, heads * size)})


def repeat_heads(builder: GraphBuilder, x: str, heads: int) -> str:
    """(B, K, T, H) with each head repeated in place, so that there are `heads`."""
    batch, own, tokens, size = builder.value(x).shape
    if own == heads:
        return x
    x = builder.emit("reshape", [x], {"shape": (batch, own, 1, tokens, size)})
    x = builder.emit("broadcast_to", [x], {"shape": (batch, own, heads // own, tokens, size)})
    return builder.emit("reshape", [x], {"shape": (batch, heads, tokens, size)})


def distances(builder: GraphBuilder, rows: int, columns: int, offset: int | str) -> str:
    """Position of each query, which is its row plus `offset`, minus that of each key: (rows, columns).

    An `offset` that differs between batches is a value of int64 of shape (B, 1, 1, 1).
    """
    first = builder.scalar(offset, "int64") if isinstance(offset, int) else offset
    queries = builder.emit("add", [builder.arange(rows, (rows, 1)), first])
    return builder.emit("sub", [queries, builder.arange(columns)])


def add_window(builder: GraphBuilder, apart: str, left: int | None, right: int | None) -> list[str]:
    """Conditions on `distances`: at most `left` keys before the query's own, at most `right` after it."""
    bounds: list[str] = []
    if left is not None:
        bounds.append(builder.emit("less_equal", [apart, builder.scalar(left, "int64")]))
    if right is not None:
        bounds.append(builder.emit("less_equal", [builder.scalar(-right, "int64"), apart]))
    return bounds


def as_bias(builder: GraphBuilder, allowed: str, dtype: str, excluded: float = -inf) -> str:
    """0 where a condition holds, else `excluded`."""
    return builder.emit("where", [allowed, builder.scalar(0, dtype), builder.scalar(excluded, dtype)])


def without_empty_rows(builder: GraphBuilder, biases: Sequence[str], x: str) -> str:
    """`x` with zeros in the rows that the sum of `biases` excludes entirely."""
    total = biases[0]
    for bias in biases[1:]:
        total = builder.emit("add", [total, bias])
    value = builder.value(total)
    peak = builder.emit("reduce_max", [total], {"axes": (len(value.shape) - 1,), "keepdims": True})
    empty = builder.emit("equal", [peak, builder.scalar(-inf, value.dtype)])
    known = builder.array(empty)
    if known is not None and not known.any():
        return x
    return builder.emit("where", [empty, builder.scalar(0, builder.value(x).dtype), x])


def append_cache(builder: GraphBuilder, past: str, x: str) -> str:
    """The tokens of `x` behind those of `past`, if any; (B, N, T, H)."""
    return x if not past or builder.value(past).shape[2] == 0 else builder.emit("concat", [past, x], {"axis": 2})


def _attention(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    names = [node.operand(builder, index).name for index in range(3)]
    is_flat = len(builder.value(names[0]).shape) == 3
    if is_flat:
        counts = [node.integer(f"{word}_num_heads", 0) for word in ("q", "kv")]
        if min(counts) < 1:
            raise node.unsupported("operands of three dimensions need q_num_heads and kv_num_heads")
        names = [split_heads(builder, name, counts[min(index, 1)]) for index, name in enumerate(names)]
    query, key, value = names
    past = [node.inputs[index] if node.has_input(index) else "" for index in (4, 5)]
    length = builder.value(past[0]).shape[2] if past[0] else 0
    key, value = append_cache(builder, past[0], key), append_cache(builder, past[1], value)
    biases = _biases(builder, node, query, builder.value(key).shape[2], length)
    scale = node.number("scale", 1.0 / sqrt(builder.value(query).shape[3]))
    precision = node.integer("softmax_precision", 0)
    wide = helper.tensor_dtype_to_np_dtype(precision).name if precision else ""
    form = AttentionForm(scale, node.number("softcap", 0.0), tuple(biases), precision=wide)
    result = form.apply(builder, node, Heads(query, key, value))
    has_empty_rows = node.has_input(3) or node.has_input(6)
    output, weights = (
        without_empty_rows(builder, biases, name) if has_empty_rows else name
        for name in (result.output, result.weights)
    )
    steps = (result.product, result.capped, result.biased, weights)
    mode = node.integer("qk_matmul_output_mode", 0)
    if mode not in range(len(steps)):
        raise node.unsupported(f"qk_matmul_output_mode {mode} is outside 0 to 3")
    return [join_heads(builder, output) if is_flat else output, key, value, steps[mode]]


def _biases(builder: GraphBuilder, node: OnnxNode, query: str, columns: int, past: int) -> list[str]:
    """What the node adds to the scores of `columns` keys, of which `past` come from the cache."""
    rows, dtype = builder.value(query).shape[2], sum_type(builder.value(query).dtype)
    biases: list[str] = []
    if node.has_input(3):
        biases.append(_mask(builder, node.inputs[3], columns, dtype))
    offset: int | str = past
    conditions: list[str] = []
    if node.has_input(6):
        batch = builder.value(query).shape[0]
        lengths = builder.emit("reshape", [cast_to(builder, node.inputs[6], "int64")], {"shape": (batch, 1, 1, 1)})
        conditions.append(builder.emit("less", [builder.arange(columns), lengths]))
        offset = builder.emit("sub", [lengths, builder.scalar(rows, "int64")])
    left, right = (node.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    if node.integer("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    if left >= 0 or right >= 0:
        bounds = (None if left < 0 else left, None if right < 0 else right)
        conditions += add_window(builder, distances(builder, rows, columns, offset), *bounds)
    return biases + [as_bias(builder, condition, dtype) for condition in conditions]


def _mask(builder: GraphBuilder, mask: str, columns: int, dtype: str) -> str:
    """A mask as a bias; keys behind its end are excluded."""
    value = builder.value(mask)
    bias = as_bias(builder, mask, dtype) if value.dtype == "bool" else cast_to(builder, mask, dtype)
    missing = columns - value.shape[-1]
    if value.shape[-1] == 1 or missing <= 0:
        return bias
    border = (0,) * (len(value.shape) - 1)
    return builder.emit("pad", [bias], {"pads_before": (*border, 0), "pads_after": (*border, missing), "value": -inf})


def rotate(builder: GraphBuilder, x: str, cosine: str, sine: str, *, interleaved: bool) -> str:
    """Pairs of the last axis of `x` turned by angles, the rest of the axis kept.

    `cosine` and `sine` broadcast with a half of what is turned. A pair is two neighbors if `interleaved`, else elements
    of the same place in the two halves.
    """
    *outer, size = builder.value(x).shape
    axis, half = len(outer), builder.value(cosine).shape[-1]
    turned = cut(builder, x, axis, 0, 2 * half) if 2 * half < size else x
    if interleaved:
        first, second = (take(builder, turned, axis, range(start, 2 * half, 2)) for start in (0, 1))
    else:
        first, second = cut(builder, turned, axis, 0, half), cut(builder, turned, axis, half, 2 * half)

    def products(a: str, b: str, op: str) -> str:
        return builder.emit(op, [builder.emit("mul", [first, a]), builder.emit("mul", [second, b])])

    parts = [products(cosine, sine, "sub"), products(sine, cosine, "add")]
    if interleaved:
        parts = [builder.emit("reshape", [part], {"shape": (*outer, half, 1)}) for part in parts]
        whole = builder.emit("concat", parts, {"axis": axis + 1})
        parts = [builder.emit("reshape", [whole], {"shape": (*outer, 2 * half)})]
    if 2 * half < size:
        parts.append(cut(builder, x, axis, 2 * half, size))
    return parts[0] if len(parts) == 1 else builder.emit("concat", parts, {"axis": axis})


def rotate_tokens(
    builder: GraphBuilder, node: OnnxNode, x: str, angles: Sequence[str], heads: int, *, interleaved: bool
) -> str:
    """`rotate` for heads (B, N, S, H), or for (B, S, heads * H); `angles` are cosines and sines (B, S, R / 2)."""
    shape = builder.value(x).shape
    axis = 1 if len(shape) == 4 else 2
    if axis == 2:
        if heads < 1:
            raise node.unsupported("an operand of three dimensions needs num_heads")
        x = builder.emit("reshape", [x], {"shape": (*shape[:2], heads, shape[2] // heads)})
    columns = []
    for name in angles:
        own = builder.value(name).shape
        name = cast_to(builder, name, builder.value(x).dtype)
        columns.append(builder.emit("reshape", [name], {"shape": (*own[:axis], 1, *own[axis:])}))
    x = rotate(builder, x, columns[0], columns[1], interleaved=interleaved)
    return x if axis == 1 else builder.emit("reshape", [x], {"shape": shape})


def _rotary_embedding(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0).name
    angles = [node.operand(builder, index).name for index in (1, 2)]
    if node.has_input(3):
        angles = [builder.emit("gather", [name, node.inputs[3]], {"axis": 0}) for name in angles]
    turned, half = node.integer("rotary_embedding_dim", 0), builder.value(angles[0]).shape[-1]
    if turned and turned != 2 * half:
        raise node.unsupported(f"rotary_embedding_dim {turned} is not twice the {half} angles")
    interleaved = bool(node.integer("interleaved", 0))
    return [rotate_tokens(builder, node, x, angles, node.integer("num_heads", 0), interleaved=interleaved)]


CONVERTERS: Mapping[str, Converter] = {"Attention": _attention, "RotaryEmbedding": _rotary_embedding}
