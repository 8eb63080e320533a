"""Converters of contributed attention: Attention, QAttention and MultiHeadAttention.

Excluded keys get the bias `mask_filter_value`, future keys the lowest number, as in ONNX Runtime: a row without any
other key is the softmax of the excluded scores.
"""

from collections.abc import Mapping, Sequence
from math import sqrt

from retune.compiler.frontend.ops.attention import (
    AttentionForm,
    Heads,
    add_window,
    append_cache,
    as_bias,
    distances,
    join_heads,
    split_heads,
)
from retune.compiler.frontend.ops.contributed.quantized import scale_product
from retune.compiler.frontend.ops.elementwise import Converter, cast_to
from retune.compiler.frontend.ops.indexing import cut, take
from retune.compiler.frontend.ops.standard import Composition, compose

_FILTER = -10000.0
LOWEST = -(2.0**128 - 2.0**104)
"""The lowest finite number of float32, in which scores are summed."""


def scale_of(write: Composition, query: str) -> float:
    """The attribute `scale`; without it, or if it is 0, the inverse root of the size of the heads of `query`."""
    return write.node.number("scale", 0.0) or 1.0 / sqrt(write.shape(query)[3])


def _mask_bias(write: Composition, mask: str, rows: int, columns: int) -> str:
    """The bias of a mask: lengths (B,), ends and starts (2 B,), or keys (B, T), (B, S, T) or (B, 1, M, M)."""
    builder, value = write.builder, write.builder.value(mask)
    batch = write.shape(write.node.inputs[0])[0]
    rank, problem = len(value.shape), f"a mask of {list(value.shape)} for {batch} x {rows} queries of {columns} keys"
    if rank == 1:
        if value.shape[0] not in (batch, 2 * batch):
            raise write.node.unsupported(problem)
        wide = cast_to(builder, mask, "int64")
        places = builder.arange(columns)

        def column(start: int) -> str:
            return write("reshape", cut(builder, wide, 0, start, start + batch), shape=(batch, 1, 1, 1))

        allowed = write("less", places, column(0))
        if value.shape[0] != batch:
            allowed = write("bit_and", allowed, write("less_equal", column(batch), places))
    elif rank == 2 and value.shape == (batch, columns):
        allowed = write("less", 0, write("reshape", mask, shape=(batch, 1, 1, columns)))
    elif rank == 3 and value.shape == (batch, rows, columns):
        allowed = write("less", 0, write("reshape", mask, shape=(batch, 1, rows, columns)))
    elif rank == 4 and value.shape[:2] == (batch, 1) and value.shape[2] >= columns:
        # The queries are the last of the tokens.
        mask = cut(builder, cut(builder, mask, 2, columns - rows, columns), 3, 0, columns)
        allowed = write("less", 0, mask)
    else:
        raise write.node.unsupported(problem)
    # `less` with a number first takes the mask's type.
    return as_bias(builder, allowed, "float32", write.node.number("mask_filter_value", _FILTER))


def _biases(write: Composition, mask: str, bias: str, query: str, keys: Sequence[str]) -> tuple[str, ...]:
    """What is added to the scores: the mask, the exclusion of future keys, and `bias`. `keys` are past and all keys."""
    rows, columns = write.shape(query)[2], write.shape(keys[1])[2]
    past = write.shape(keys[0])[2] if keys[0] else 0
    biases = [_mask_bias(write, mask, rows, columns)] if mask else []
    if write.node.integer("unidirectional", 0):
        if columns != past + rows:
            raise write.node.unsupported(f"unidirectional attention of {rows} queries to {columns} keys")
        (allowed,) = add_window(write.builder, distances(write.builder, rows, columns, past), None, 0)
        biases.append(as_bias(write.builder, allowed, "float32", LOWEST))
    return (*biases, *([bias] if bias else []))


def _project(write: Composition, product: str, sizes: Sequence[int]) -> list[str]:
    """The heads of query, key and value, which lie side by side in the last axis of a product."""
    heads, start, parts = write.node.integer("num_heads", 0), 0, []
    if heads < 1 or any(size % heads for size in sizes) or sum(sizes) != write.shape(product)[2]:
        raise write.node.unsupported(f"{heads} heads of hidden sizes {list(sizes)}")
    for size in sizes:
        parts.append(split_heads(write.builder, cut(write.builder, product, 2, start, start + size), heads))
        start += size
    return parts


def _attend(write: Composition, product: str, sizes: Sequence[int], operands: Sequence[str]) -> list[str]:
    """Attention of projected tokens, and the cache; `operands` are mask, past and bias."""
    builder, (mask, past, bias) = write.builder, operands
    query, key, value = _project(write, product, sizes)
    cached = ["", ""]
    if past:
        cached = [write("reshape", take(builder, past, 0, [i]), shape=write.shape(past)[1:]) for i in (0, 1)]
    key, value = append_cache(builder, cached[0], key), append_cache(builder, cached[1], value)
    biases = _biases(write, mask, bias, query, (cached[0], key))
    form = AttentionForm(scale_of(write, query), biases=biases)
    output = join_heads(builder, form.apply(builder, write.node, Heads(query, key, value)).output)
    if not any(write.node.outputs[1:]):
        return [output]
    whole = [write("reshape", part, shape=(1, *write.shape(part))) for part in (key, value)]
    return [output, write("concat", *whole, axis=0)]


def _check_attention(write: Composition) -> None:
    for key in ("do_rotary", "past_present_share_buffer"):
        write.expect(key, 0)


def _attention(write: Composition) -> list[str]:
    _check_attention(write)
    write.refuse(6, "past_sequence_length")
    product = write("MatMul", *write.node.inputs[:2])
    product = write("Add", product, write.operand(2)) if write.operand(2) else product
    sizes = write.node.ints("qkv_hidden_sizes") or (write.shape(product)[2] // 3,) * 3
    return _attend(write, product, sizes, [write.operand(index) for index in (3, 4, 5)])


def _quantized_attention(write: Composition) -> list[str]:
    _check_attention(write)
    whole = write("MatMulInteger", *write.node.inputs[:2], write.operand(6), write.operand(7))
    product = scale_product(write, whole, (write.operand(3), write.operand(4)), write.operand(2))
    sizes = (write.shape(product)[2] // 3,) * 3
    return _attend(write, product, sizes, [write.operand(5), write.operand(8), ""])


def _heads(write: Composition) -> list[str]:
    """The heads of query, key and value of MultiHeadAttention: packed, or of their own, with their biases."""
    builder, count = write.builder, write.node.integer("num_heads", 0)
    query, key, value = (write.operand(index) for index in range(3))
    packed = [name for name in (key, query) if name and len(write.shape(name)) == 5][:1]
    names = [query, key, value]
    for name in packed:
        batch, tokens, heads, parts, size = write.shape(name)
        flat = [
            write("reshape", take(builder, name, 3, [i]), shape=(batch, tokens, heads * size)) for i in range(parts)
        ]
        names[3 - parts :] = flat
    if not all(names):
        raise write.node.unsupported("operands key and value are missing, and the query is not packed")
    bias, start = write.operand(3), 0
    for index, name in enumerate(names):
        shape = write.shape(name)
        if len(shape) == 4:  # of a cache: with bias
            continue
        if bias:
            name = write("Add", name, cut(builder, bias, 0, start, start + shape[2]))
            start += shape[2]
        names[index] = split_heads(builder, name, count)
    return names


def _multi_head_attention(write: Composition) -> list[str]:
    builder = write.builder
    for index, what in ((8, "past_sequence_length"), (9, "cache_indirection")):
        write.refuse(index, what)
    query, key, value = _heads(write)
    key, value = append_cache(builder, write.operand(6), key), append_cache(builder, write.operand(7), value)
    biases = _biases(write, write.operand(4), write.operand(5), query, (write.operand(6), key))
    form = AttentionForm(scale_of(write, query), biases=biases)
    result = form.apply(builder, write.node, Heads(query, key, value))
    return [join_heads(builder, result.output), key, value, result.biased]


CONVERTERS: Mapping[str, Converter] = {
    "Attention": compose(_attention),
    "MultiHeadAttention": compose(_multi_head_attention),
    "QAttention": compose(_quantized_attention),
}
