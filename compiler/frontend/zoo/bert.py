"""BERT as an ONNX model, from token ids to vectors.

Layer normalization follows each half of a layer (post-norm).
"""

import numpy as np
import onnx
from onnx import TensorProto

from retune.compiler.frontend.zoo.attention import Sizes, gelu, join_heads, padding_mask, split_heads, weighted_values
from retune.compiler.frontend.zoo.layers import LayerWriter

# BERT's own, far below what float32 resolves beside a variance near 1.
_EPSILON = 1e-12
_POSITIONS = 512
"""Most tokens."""


def bert_base(
    *,
    batch: int | str = 1,
    tokens: int | str = 128,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    words: int = 30522,
    seed: int = 0,
) -> onnx.ModelProto:
    """Inputs `input_ids`, `attention_mask` (1 for a token, 0 for none) and `token_type_ids`, int64 (batch, tokens);
    outputs `last_hidden_state` (batch, tokens, width) and `pooler_output` (batch, width).

    A symbol in place of a number leaves the batch or the number of tokens, up to 512, to the caller.
    """
    write = LayerWriter("bert_base", None, seed)
    x, _ = encode(write, Sizes(batch, tokens, width, heads, 4 * width), layers, words)
    first = write.node("Gather", [x, write.weight(np.asarray(0, np.int64), "first_token")], "first", axis=1)
    pooled = write.node("Tanh", [write.linear(first, (width, width), "pooler")], "pooler_output")
    return write.finish_all({x: (batch, tokens, width), pooled: (batch, width)})


def encode(write: LayerWriter, sizes: Sizes, layers: int, words: int) -> tuple[str, str]:
    """The vectors of the tokens, `last_hidden_state`, and the input that says which of them are there."""
    ids, attended, types = (
        write.feed(name, (sizes.batch, sizes.tokens), TensorProto.INT64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    mask = padding_mask(write, attended)
    x = _embedding(write, ids, types, sizes, words)
    for layer in range(layers):
        name = f"layer{layer}"
        last = layer == layers - 1
        x = _layer(write, x, mask, sizes, name, "last_hidden_state" if last else f"{name}_out")
    return x, attended


def _embedding(write: LayerWriter, ids: str, types: str, sizes: Sizes, words: int) -> str:
    """The sum of word, type and position vectors, normalized."""
    width = sizes.width
    table = write.normal((words, width), 0.5, "word_table")
    word = write.node("Gather", [table, ids], "word", axis=0)
    kind = write.node("Gather", [write.normal((2, width), 0.3, "type_table"), types], "type", axis=0)
    places = _places(write, ids, sizes.tokens)
    place = write.node("Gather", [write.normal((_POSITIONS, width), 0.3, "place_table"), places], "place", axis=0)
    both = write.node("Add", [word, kind], "word_and_type")
    return write.layer_norm(write.node("Add", [both, place], "embedding_sum"), width, "embedding", epsilon=_EPSILON)


def _places(write: LayerWriter, ids: str, tokens: int | str) -> str:
    """The number of each token, (1, tokens); if their number is not known, a part of all numbers, as exporters do."""
    if isinstance(tokens, int):
        return write.weight(np.arange(tokens, dtype=np.int64)[None], "places")
    every = write.weight(np.arange(_POSITIONS, dtype=np.int64)[None], "all_places")
    count = write.extent(ids, 1, "tokens_count")
    return write.node("Slice", [every, *write.part(0, count, 1, "places")], "places")


def _layer(write: LayerWriter, x: str, mask: str, sizes: Sizes, name: str, output: str) -> str:
    """Attention, then the feed-forward part, each added to what it got and normalized."""
    square = (sizes.width, sizes.width)
    query, key, value = (
        split_heads(write, write.linear(x, square, f"{name}_{part}"), sizes, f"{name}_{part}")
        for part in ("query", "key", "value")
    )
    mixed = weighted_values(write, query, key, value, sizes.head_width, f"{name}_attention", mask=mask)
    attended = write.linear(join_heads(write, mixed, sizes, f"{name}_attention"), square, f"{name}_projection")
    x = write.layer_norm(
        write.node("Add", [attended, x], f"{name}_attention_sum"), sizes.width, f"{name}_attended", epsilon=_EPSILON
    )
    inner = gelu(write, write.linear(x, (sizes.width, sizes.hidden), f"{name}_up"), f"{name}_gelu")
    made = write.linear(inner, (sizes.hidden, sizes.width), f"{name}_down")
    return write.layer_norm(write.node("Add", [made, x], f"{name}_sum"), sizes.width, output, epsilon=_EPSILON)
