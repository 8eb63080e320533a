"""Converters of contributed GroupQueryAttention and RotaryEmbedding.

A cache holds the tokens of each sequence from its start; behind them are zeros. Sequences may differ in length.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from retune.compiler.frontend.ops.attention import (
    AttentionForm,
    Heads,
    add_window,
    append_cache,
    as_bias,
    distances,
    join_heads,
    rotate_tokens,
    split_heads,
)
from retune.compiler.frontend.ops.contributed.attention import LOWEST, scale_of
from retune.compiler.frontend.ops.elementwise import Converter, cast_to
from retune.compiler.frontend.ops.indexing import cut
from retune.compiler.frontend.ops.standard import Composition, compose
from retune.compiler.ir.dims import whole


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The new tokens of each sequence: their number, the number of all tokens, and how many come before them.

    `start` is a value of int64 of shape (B, 1) where sequences differ, `is_first` says that there is no cache yet.
    """

    count: int
    total: int
    start: int | str
    is_first: bool


def _tokens(write: Composition) -> _Tokens:
    count = write.shape(write.operand(0))[1]
    total = whole(write.node.array(write.builder, 6, "total_sequence_length").item())
    if count == total:
        return _Tokens(count, total, 0, True)
    known = write.builder.array(write.operand(5))
    if known is not None and (known == known.flat[0]).all():
        return _Tokens(count, total, whole(known.flat[0]) + 1 - count, False)
    lengths = write("reshape", cast_to(write.builder, write.operand(5), "int64"), shape=_column(write))
    return _Tokens(count, total, write("add", lengths, 1 - count), False)


def _column(write: Composition) -> tuple[int, int]:
    return (write.shape(write.operand(0))[0], 1)


def _projections(write: Composition) -> list[str]:
    """Query, key and value of tokens (B, S, heads * H), normalized if the node has weights for that."""
    counts = [write.node.integer(key, 0) for key in ("num_heads", "kv_num_heads")]
    heads = (counts[0], counts[1], counts[1])
    query, key, value = (write.operand(index) for index in range(3))
    if min(heads) < 1 or counts[0] % counts[1]:
        raise write.node.unsupported(f"{counts[0]} heads of queries for {counts[1]} of keys")
    parts = [query, key, value]
    if not key:
        size, start = write.shape(query)[2] // sum(heads), 0
        parts = []
        for count in heads:
            parts.append(cut(write.builder, query, 2, start, start + count * size))
            start += count * size
    epsilon = write.node.number("qk_norm_epsilon", 1e-6)
    for index, side in enumerate("qk"):
        if write.operand(14 + index):
            shape = write.shape(parts[index])
            split = write("reshape", parts[index], shape=(*shape[:2], heads[index], shape[2] // heads[index]))
            own = write.node.number(f"{side}_norm_epsilon", epsilon)
            split = write("RMSNormalization", split, write.operand(14 + index), epsilon=own)
            parts[index] = write("reshape", split, shape=shape)
    return parts


def _positions(write: Composition, tokens: _Tokens) -> str:
    """The positions (B, S) of the new tokens, also for a single number in place of those of a first prompt."""
    if write.operand(9) and not tokens.is_first:
        return write.operand(9)
    places = write.builder.arange(tokens.count)
    start = tokens.start
    if write.operand(9):
        start = cut(write.builder, cut(write.builder, write.operand(9), 0, 0, 1), 1, 0, 1)
    return write("broadcast_to", write("add", places, start), shape=(_column(write)[0], tokens.count))


def _cache(write: Composition, past: str, new: str, tokens: _Tokens, heads: int) -> tuple[str, str]:
    """All keys or values (B, heads, total, H) of past and new tokens (B, S, heads * H), and the new cache."""
    builder = write.builder
    room = max(tokens.total, write.shape(past)[2]) if past else tokens.total
    if isinstance(tokens.start, int):
        old = cut(builder, past, 2, 0, tokens.start) if past and tokens.start else ""
        every = append_cache(builder, old, split_heads(builder, new, heads))
        return every, _pad(write, every, room)
    relative = write("sub", builder.arange(room), tokens.start)
    inside = write("minimum", write("maximum", relative, 0), tokens.count - 1)
    is_new = write("bit_and", write("less", -1, relative), write("less", relative, tokens.count))
    batch = _column(write)[0]
    # Whole tokens are gathered: an index for each, not for each element.
    moved = write("gather_nd", new, write("reshape", inside, shape=(batch, room, 1)), batch_dims=1)
    moved = split_heads(builder, moved, heads)
    is_old = write("less", relative, 0)
    conditions = [write("reshape", name, shape=(batch, 1, room, 1)) for name in (is_new, is_old)]
    old = write("where", conditions[1], _pad(write, past, room), builder.scalar(0, write.dtype(new)))
    cache = write("where", conditions[0], moved, old)
    return cut(builder, cache, 2, 0, tokens.total), cache


def _pad(write: Composition, x: str, room: int) -> str:
    missing = room - write.shape(x)[2]
    if missing == 0:
        return x
    return write("pad", x, pads_before=(0, 0, 0, 0), pads_after=(0, 0, missing, 0), value=0.0)


def _biases(write: Composition, tokens: _Tokens) -> list[str]:
    """The exclusion of future keys, of keys before the window, and of padding; then the node's own bias."""
    node, builder = write.node, write.builder
    offset: int | str = tokens.start
    if isinstance(offset, str):
        offset = write("reshape", offset, shape=(_column(write)[0], 1, 1, 1))
    window = node.integer("local_window_size", -1)
    if node.integer("causal", 1):
        apart = distances(builder, tokens.count, tokens.total, offset)
        allowed = add_window(builder, apart, window - 1 if window > 0 else None, 0)
    else:
        lengths = cast_to(builder, write.operand(5), "int64")
        lengths = write("reshape", lengths, shape=(_column(write)[0], 1, 1, 1))
        allowed = [write("less_equal", builder.arange(tokens.total), lengths)]
    biases = [as_bias(builder, condition, "float32", LOWEST) for condition in allowed]
    return [write.operand(10), *biases] if write.operand(10) else biases


def _grouped_attention(write: Composition) -> list[str]:
    builder, node = write.builder, write.node
    for key, value in (("sliding_window_cache", 0), ("k_quant_type", "NONE"), ("v_quant_type", "NONE")):
        write.expect(key, value)
    for index, what in ((12, "k_scale"), (13, "v_scale"), (16, "query_seqlens")):
        write.refuse(index, what)
    query, key, value = _projections(write)
    tokens, heads = _tokens(write), node.integer("num_heads", 0)
    own_heads = node.integer("kv_num_heads", 0)
    if node.integer("do_rotary", 0):
        positions = _positions(write, tokens)
        angles = [write("gather", write.operand(index), positions, axis=0) for index in (7, 8)]
        interleaved = bool(node.integer("rotary_interleaved", 0))
        query, key = (
            rotate_tokens(builder, node, name, angles, count, interleaved=interleaved)
            for name, count in ((query, heads), (key, own_heads))
        )
    keys, key_cache = _cache(write, write.operand(3), key, tokens, own_heads)
    values, value_cache = _cache(write, write.operand(4), value, tokens, own_heads)
    query = split_heads(builder, query, heads)
    dtype = write.dtype(query)
    sink = write.operand(11)
    if not sink and node.integer("smooth_softmax", -1) > 0:
        sink = builder.filled(0, dtype, (heads,))
    biases = tuple(_biases(write, tokens))
    form = AttentionForm(scale_of(write, query), node.number("softcap", 0.0), biases, sink)
    result = form.apply(builder, node, Heads(query, keys, values))
    scores = result.weights if node.integer("qk_output", 0) == 2 else result.biased
    return [join_heads(builder, result.output), key_cache, value_cache, scores]


def _rotary_embedding(write: Composition) -> str:
    node, builder = write.node, write.builder
    write.expect("is_packed_batching", 0)
    x, positions = write.operand(0), write.operand(1)
    shape, angles = write.shape(x), write.shape(write.operand(2))[1]
    batch, length = (shape[0], shape[2]) if len(shape) == 4 else shape[:2]
    if write.builder.value(positions).size == 1 and len(write.shape(positions)) == 1:
        positions = write("add", builder.arange(length), write("reshape", positions, shape=(1, 1)))
        positions = write("broadcast_to", positions, shape=(batch, length))
    columns = [write("gather", write.operand(index), positions, axis=0) for index in (2, 3)]
    heads = node.integer("num_heads", 0)
    if len(shape) == 3 and not node.integer("rotary_embedding_dim", 0):
        heads = shape[2] // (2 * angles)
    return rotate_tokens(builder, node, x, columns, heads, interleaved=bool(node.integer("interleaved", 0)))


CONVERTERS: Mapping[str, Converter] = {
    "GroupQueryAttention": compose(_grouped_attention),
    "RotaryEmbedding": compose(_rotary_embedding),
}
