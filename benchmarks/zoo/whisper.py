"""Whisper, speech recognition by a transformer, as ONNX models: the encoder of a spectrum and a step of the decoder."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.zoo.attention import feed_forward, pre_norm_layer
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import Sizes, gelu, join_heads, split_heads, weighted_values

_BANDS, _MOST_TOKENS = 80, 1500


def whisper_tiny_encoder(
    *,
    batch: int = 1,
    frames: int | str = 3000,
    layers: int = 4,
    width: int = 384,
    heads: int = 6,
    hidden: int = 1536,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input `input` (batch, 80, frames), output `last_hidden_state` (batch, frames / 2, width); 3000 frames are 30 s.

    Configuration of openai/whisper-tiny (Radford et al., arXiv 2212.04356). Places are sinusoids.
    A symbol in place of a number leaves the number of frames, up to 3000, to the caller.
    """
    write = LayerWriter("whisper_tiny_encoder", (batch, _BANDS, frames), seed)
    x = gelu(write, write.shifted_convolution(write.input, (_BANDS, width), 3, "conv1"), "gelu1")
    x = gelu(write, write.shifted_convolution(x, (width, width), 3, "conv2", stride=2), "gelu2")
    x = write.node("Transpose", [x], "rows", perm=[0, 2, 1])
    tokens = "tokens" if isinstance(frames, str) else frames // 2
    x = write.node("Add", [x, _places(write, x, tokens, width)], "placed")
    sizes = Sizes(batch, tokens, width, heads, hidden)
    for layer in range(layers):
        x = pre_norm_layer(write, x, sizes, f"layer{layer}", activation=gelu, key_bias=False)
    return write.finish(write.layer_norm(x, width, "last_hidden_state"), (batch, tokens, width))


def whisper_tiny_step(
    *,
    batch: int = 1,
    past: int = 63,
    heard: int = 1500,
    layers: int = 4,
    width: int = 384,
    heads: int = 6,
    hidden: int = 1536,
    words: int = 51865,
    positions: int = 448,
    seed: int = 0,
) -> onnx.ModelProto:
    """One token after `past` cached ones. Inputs `input_ids` and `position_ids`, int64 (batch, 1), and of each layer N
    `past_key_values.N.decoder.key` and `.value`, (batch, heads, past, width / heads), and `.encoder.key` and `.value`,
    those of the `heard` vectors of the encoder; outputs `logits` (batch, 1, words) and `present.N.decoder.key` and
    `.value`. The word table is the classifier too.
    """
    write = LayerWriter("whisper_tiny_step", None, seed)
    ids, places = (write.feed(name, (batch, 1), TensorProto.INT64) for name in ("input_ids", "position_ids"))
    sizes = Sizes(batch, 1, width, heads, hidden)
    table = write.normal((words, width), 0.1, "word_table")
    word = write.node("Gather", [table, ids], "word", axis=0)
    place = write.node("Gather", [write.normal((positions, width), 0.05, "place_table"), places], "place", axis=0)
    x = write.node("Add", [word, place], "embedded")
    present = (batch, heads, past + 1, sizes.head_width)
    outputs: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        own, other = (
            [
                write.feed(f"past_key_values.{layer}.{side}.{part}", (batch, heads, count, sizes.head_width))
                for part in ("key", "value")
            ]
            for side, count in (("decoder", past), ("encoder", heard))
        )
        made = [f"present.{layer}.decoder.{part}" for part in ("key", "value")]
        x = _step(write, x, (own, other), made, sizes, f"layer{layer}")
        outputs |= dict.fromkeys(made, present)
    x = write.layer_norm(x, width, "norm")
    turned = write.node("Transpose", [table], "words_turned", perm=[1, 0])
    return write.finish_all({write.node("MatMul", [x, turned], "logits"): (batch, 1, words), **outputs})


def _step(
    write: LayerWriter, x: str, remembered: tuple[list[str], list[str]], made: Sequence[str], sizes: Sizes, name: str
) -> str:
    """Attention to the tokens so far, then to what was heard, then the feed-forward part; each is added."""
    (old_key, old_value), (heard_key, heard_value) = remembered
    square = (sizes.width, sizes.width)

    def heads_of(normal: str, part: str, *, bias: bool = True) -> str:
        return split_heads(write, write.linear(normal, square, part, bias=bias), sizes, part)

    def attend(query: str, key: str, value: str, at: str) -> str:
        mixed = weighted_values(write, query, key, value, sizes.head_width, at)
        return write.linear(join_heads(write, mixed, sizes, at), square, f"{at}_projection")

    normal = write.layer_norm(x, sizes.width, f"{name}_norm1")
    query = heads_of(normal, f"{name}_query")
    key = write.node("Concat", [old_key, heads_of(normal, f"{name}_key", bias=False)], made[0], axis=2)
    value = write.node("Concat", [old_value, heads_of(normal, f"{name}_value")], made[1], axis=2)
    x = write.node("Add", [x, attend(query, key, value, f"{name}_attention")], f"{name}_attended")
    normal = write.layer_norm(x, sizes.width, f"{name}_norm2")
    query = heads_of(normal, f"{name}_cross_query")
    x = write.node("Add", [x, attend(query, heard_key, heard_value, f"{name}_cross")], f"{name}_crossed")
    normal = write.layer_norm(x, sizes.width, f"{name}_norm3")
    return write.node("Add", [x, feed_forward(write, normal, sizes, name, gelu)], f"{name}_out")


def _places(write: LayerWriter, x: str, tokens: int | str, width: int) -> str:
    """The vectors of the places of `x`: all that there are, or as many as it has, if their number is not known."""
    if isinstance(tokens, int):
        return write.weight(_sinusoids(tokens, width), "places")
    every = write.weight(_sinusoids(_MOST_TOKENS, width), "all_places")
    return write.node("Slice", [every, *write.part(0, write.extent(x, 1, "tokens_count"), 0, "places")], "places")


def _sinusoids(tokens: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Sines and then cosines of each token's number at rates from 1 to 1/10000, (tokens, width)."""
    rates = np.exp(-np.log(10000) / (width // 2 - 1) * np.arange(width // 2))
    angles = np.arange(tokens)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
