"""A GPT-2 block with its key-value cache, and a greedy decoding loop around one, as ONNX models.

A token attends to all cached tokens, to the new tokens before it and to itself.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.zoo.attention import causal_mask, gelu_by_tanh
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import Sizes, join_heads, split_heads, weighted_values


def gpt2_block(
    *,
    batch: int = 1,
    tokens: int = 1,
    past: int = 255,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    seed: int = 0,
) -> onnx.ModelProto:
    """Inputs `hidden_states` (batch, tokens, width), `past_key` and `past_value` (batch, heads, past, width / heads);
    outputs `hidden_out` and, with `tokens` more rows, `present_key` and `present_value`.
    """
    write = LayerWriter("gpt2_block", None, seed)
    sizes = Sizes(batch, tokens, width, heads, hidden)
    x = write.feed("hidden_states", (batch, tokens, width))
    remembered = [write.feed(name, (batch, heads, past, sizes.head_width)) for name in ("past_key", "past_value")]
    x, key, value = _block(write, x, remembered, sizes, causal_mask(write, tokens, past))
    present = (batch, heads, past + tokens, sizes.head_width)
    return write.finish_all({x: (batch, tokens, width), key: present, value: present})


def gpt2_greedy(
    *,
    tokens: int | str = "tokens",
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    words: int = 50257,
    positions: int = 1024,
    end: int = -1,
    seed: int = 0,
) -> onnx.ModelProto:
    """A block of GPT-2 that writes on: token vectors, the block, scores of all words, the best of which comes next.

    Inputs `input_ids`, int64 (1, tokens), and `steps`, an int64 without dimensions; outputs `output_ids`, int64 (1,
    tokens + steps), and `scores` (steps, 1, words), those of the word after each new one. It ends early after the word
    `end`. There may be `positions` tokens, the new ones among them.
    """
    write = LayerWriter("gpt2_greedy", None, seed)
    sizes = Sizes(1, tokens, width, heads, hidden)
    ids = write.feed("input_ids", (1, tokens), TensorProto.INT64)
    steps = write.feed("steps", (), TensorProto.INT64)
    prompt = write.prefixed("prompt_")
    count = prompt.extent(ids, 1, "count")
    rows = prompt.node("Slice", [causal_mask(write, positions, 0), *write.part(0, count, 0, "rows")], "rows")
    mask = prompt.node("Slice", [rows, *write.part(0, count, 1, "columns")], "mask")
    x = _embedded(prompt, ids, "", words, positions, sizes)
    x, key, value = _block(prompt, x, (), sizes, mask)
    following, _ = _best_word(prompt, x, words, width)
    body = _step(write.body("step_"), Sizes(1, 1, width, heads, hidden), words, positions, end)
    results = ["output_ids", "last_word", "all_keys", "all_values", "scores"]
    write.nodes("Loop", [steps, "", ids, following, key, value], results, body=body)
    write.result("output_ids", (1, "all_tokens"), TensorProto.INT64)
    return write.finish_all({"scores": ("new_tokens", 1, words)})


def _step(write: LayerWriter, sizes: Sizes, words: int, positions: int, end: int) -> onnx.GraphProto:
    """An iteration: append the next token to the others, store it, and find the one after it."""
    write.feed("step_turn", (), TensorProto.INT64)
    write.feed("step_on", (), TensorProto.BOOL)
    ids = write.feed("step_ids", (1, "step_count"), TensorProto.INT64)
    word = write.feed("step_word", (1, 1), TensorProto.INT64)
    cache = (1, sizes.heads, "step_past", sizes.head_width)
    remembered = [write.feed(name, cache) for name in ("step_past_key", "step_past_value")]
    longer = write.node("Concat", [ids, word], "longer", axis=1)
    x = _embedded(write, word, remembered[0], words, positions, sizes)
    x, key, value = _block(write, x, remembered, sizes, "")
    following, scores = _best_word(write, x, words, sizes.width)
    write.result(write.node("Not", [_is_end(write, word, end)], "goes_on"), (), TensorProto.BOOL)
    write.result(longer, (1, "step_longer"), TensorProto.INT64)
    write.result(following, (1, 1), TensorProto.INT64)
    for name in (key, value):
        write.result(name, (1, sizes.heads, "step_present", sizes.head_width))
    write.result(scores, (1, words))
    return write.finish_body()


def _embedded(write: LayerWriter, ids: str, past: str, words: int, positions: int, sizes: Sizes) -> str:
    """The vectors of words and of their places, which begin after those in the cache `past`, if there is one."""
    word = write.node("Gather", [write.normal((words, sizes.width), 0.5, "word_table"), ids], "word_vectors", axis=0)
    table = write.normal((positions, sizes.width), 0.1, "place_table")
    if past:
        place = write.node("Gather", [table, write.extent(past, 2, "place")], "place_vector", axis=0)
    else:
        count = write.extent(ids, 1, "places")
        place = write.node("Slice", [table, *write.part(0, count, 0, "place_vectors")], "place_vectors")
    return write.node("Add", [word, place], "embedded")


def _best_word(write: LayerWriter, x: str, words: int, width: int) -> tuple[str, str]:
    """The word (1, 1) after the last vector, and the scores (1, words) of all."""
    last = write.node("Gather", [x, write.weight(np.asarray(-1), "last_token")], "last", axis=1)
    normal = write.layer_norm(last, width, "final_norm")
    turned = write.node("Transpose", [write.normal((words, width), 0.5, "word_table")], "words_turned", perm=[1, 0])
    scores = write.node("MatMul", [normal, turned], "word_scores")
    return write.node("ArgMax", [scores], "following", axis=1, keepdims=1), scores


def _is_end(write: LayerWriter, word: str, end: int) -> str:
    """Whether a word (1, 1) is the one after which nothing comes; without dimensions."""
    flag = write.node("Equal", [word, write.weight(np.asarray(end), "end_word")], "is_end_word")
    return write.node("Squeeze", [flag], "is_end")


def _block(write: LayerWriter, x: str, remembered: Sequence[str], sizes: Sizes, mask: str) -> tuple[str, str, str]:
    """Vectors for those of `x`, and the keys and values of `remembered` ones with theirs after them."""
    width, hidden = sizes.width, sizes.hidden
    normal = write.layer_norm(x, width, "norm1")
    names = ["query", "new_key", "new_value"]
    parts = write.split(write.linear(normal, (width, 3 * width), "attention_in"), 2, names)
    query, *new = (split_heads(write, part, sizes, name) for part, name in zip(parts, names, strict=True))
    key, value = new
    if remembered:
        key, value = (
            write.node("Concat", [old, fresh], name, axis=2)
            for old, fresh, name in zip(remembered, new, ("present_key", "present_value"), strict=True)
        )
    mixed = weighted_values(write, query, key, value, sizes.head_width, "attention", mask=mask)
    attended = write.linear(join_heads(write, mixed, sizes, "attention"), (width, width), "attention_out")
    x = write.node("Add", [attended, x], "attended")
    normal = write.layer_norm(x, width, "norm2")
    inner = gelu_by_tanh(write, write.linear(normal, (width, hidden), "up"), "gelu")
    return write.node("Add", [x, write.linear(inner, (hidden, width), "down")], "hidden_out"), key, value
