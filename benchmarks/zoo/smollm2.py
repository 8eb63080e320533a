"""SmolLM2, a language model of Llama's architecture, as ONNX models: a prompt, and a step after cached tokens.

RMS normalization, rotary places, three heads of keys and values for nine of queries, and a gated feed-forward part.
"""

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.zoo.attention import causal_mask
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.core.errors import OptionError
from retune.compiler.frontend.zoo.attention import Sizes, join_heads, padding_mask, split_heads, weighted_values

_EPSILON = 1e-5
_THETA = 100_000.0


def smollm2_135m(
    *,
    batch: int = 1,
    tokens: int = 128,
    past: int | str = 0,
    layers: int = 30,
    width: int = 576,
    heads: int = 9,
    key_heads: int = 3,
    hidden: int = 1536,
    words: int = 49152,
    seed: int = 0,
) -> onnx.ModelProto:
    """Inputs `input_ids` and `position_ids`, int64 (batch, tokens), `attention_mask` (1 for a token, 0 for none), int64
    (batch, past + tokens), and, if `past` is not 0, `past_key_values.N.key` and `.value` of each layer N, (batch,
    key_heads, past, width / heads); outputs `logits` (batch, tokens, words) and `present.N.key` and `.value`.

    A symbol as `past` leaves the number of cached tokens to the caller, for one new token; `total` is that of all.
    Configuration of HuggingFaceTB/SmolLM2-135M (Allal et al., arXiv 2502.02737); the word table is the classifier too.
    """
    write = LayerWriter("smollm2_135m_step" if past else "smollm2_135m", None, seed)
    ids = write.feed("input_ids", (batch, tokens), TensorProto.INT64)
    if isinstance(past, str) and tokens != 1:
        raise OptionError("smollm2_135m takes a symbol for the cached tokens only beside one new token")
    total = "total" if isinstance(past, str) else past + tokens
    attended = write.feed("attention_mask", (batch, total), TensorProto.INT64)
    positions = write.feed("position_ids", (batch, tokens), TensorProto.INT64)
    sizes = Sizes(batch, tokens, width, heads, hidden)
    mask = padding_mask(write, attended)
    if isinstance(past, int) and (later := causal_mask(write, tokens, past)):
        mask = write.node("Add", [mask, later], "causal_mask")
    table = write.normal((words, width), 0.05, "word_table")
    x = write.node("Gather", [table, ids], "embedded", axis=0)
    angles = _angles(write, positions, sizes.head_width)
    cache, present = (batch, key_heads, past, sizes.head_width), (batch, key_heads, total, sizes.head_width)
    outputs: dict[str, tuple[int | str, ...]] = {}
    for layer in range(layers):
        names = [f"{layer}.{part}" for part in ("key", "value")]
        remembered = [write.feed(f"past_key_values.{name}", cache) for name in names] if past else []
        x = _layer(write, x, (mask, *angles), remembered, (sizes, key_heads), layer)
        outputs |= {f"present.{name}": present for name in names}
    x = _rms_norm(write, x, width, "norm")
    turned = write.node("Transpose", [table], "words_turned", perm=[1, 0])
    logits = write.node("MatMul", [x, turned], "logits")
    return write.finish_all({logits: (batch, tokens, words), **outputs})


def smollm2_135m_step(*, past: int | str = 255, **options: int) -> onnx.ModelProto:
    """The same for one token after `past` cached ones."""
    return smollm2_135m(tokens=1, past=past, **options)


def _layer(
    write: LayerWriter,
    x: str,
    shared: tuple[str, str, str],
    remembered: list[str],
    form: tuple[Sizes, int],
    layer: int,
) -> str:
    """Attention to cached and new tokens, then the gated feed-forward part; `shared` is the mask and the angles."""
    (mask, cosines, sines), (sizes, key_heads), name = shared, form, f"layer{layer}"
    width, square = sizes.width, (sizes.width, sizes.width)
    key_width = key_heads * sizes.head_width
    few = Sizes(sizes.batch, sizes.tokens, key_width, key_heads, sizes.hidden)
    normal = _rms_norm(write, x, width, f"{name}_norm1")
    query, key, value = (
        split_heads(write, write.linear(normal, (width, part.width), at, bias=False), part, at)
        for at, part in ((f"{name}_query", sizes), (f"{name}_key", few), (f"{name}_value", few))
    )
    query, key = (
        _rotate(write, part, (cosines, sines), sizes.head_width, f"{name}_{which}_rotated")
        for which, part in (("query", query), ("key", key))
    )
    pairs = zip(("key", "value"), (key, value), remembered or ("", ""), strict=True)
    key, value = (
        write.node("Concat", [old, new], f"present.{layer}.{which}", axis=2)
        if old
        else write.node("Identity", [new], f"present.{layer}.{which}")
        for which, new, old in pairs
    )
    repeats = sizes.heads // key_heads
    key, value = (
        _repeat_heads(write, part, (few, repeats), f"{name}_{which}")
        for which, part in (("keys", key), ("values", value))
    )
    mixed = weighted_values(write, query, key, value, sizes.head_width, f"{name}_attention", mask=mask)
    joined = join_heads(write, mixed, sizes, f"{name}_attention")
    x = write.node("Add", [x, write.linear(joined, square, f"{name}_projection", bias=False)], f"{name}_attended")
    normal = _rms_norm(write, x, width, f"{name}_norm2")
    gate = write.silu(write.linear(normal, (width, sizes.hidden), f"{name}_gate", bias=False), f"{name}_silu")
    up = write.linear(normal, (width, sizes.hidden), f"{name}_up", bias=False)
    inner = write.node("Mul", [gate, up], f"{name}_gated")
    return write.node("Add", [x, write.linear(inner, (sizes.hidden, width), f"{name}_down", bias=False)], f"{name}_out")


def _rms_norm(write: LayerWriter, x: str, width: int, name: str) -> str:
    """x / √(mean(x²) + ε) times a factor for each channel, in the nodes that exporters write."""
    squares = write.node("Pow", [x, write.number(2.0, f"{name}_two")], f"{name}_squares")
    means = write.node("ReduceMean", [squares], f"{name}_means", axes=[-1], keepdims=1)
    shifted = write.node("Add", [means, write.number(_EPSILON, f"{name}_epsilon")], f"{name}_shifted")
    root = write.node("Sqrt", [shifted], f"{name}_root")
    inverse = write.node("Div", [write.number(1.0, f"{name}_one"), root], f"{name}_inverse")
    normal = write.node("Mul", [x, inverse], f"{name}_normal")
    return write.node("Mul", [write.uniform((width,), f"{name}_scale"), normal], name)


def _angles(write: LayerWriter, positions: str, head_width: int) -> tuple[str, str]:
    """Cosines and sines of each token's angles, (batch, 1, tokens, head_width)."""
    rates = _THETA ** -(np.arange(0, head_width, 2) / head_width)
    wide = write.node("Unsqueeze", [positions, write.integers((1,), "rows_axis")], "position_rows")
    real = write.node("Cast", [wide], "position_floats", to=TensorProto.FLOAT)
    column = write.weight(rates.astype(np.float32)[None, :, None], "rotary_rates")
    turned = write.node("Transpose", [write.node("MatMul", [column, real], "angle_columns")], "angles", perm=[0, 2, 1])
    twice = write.node("Concat", [turned, turned], "angles_twice", axis=-1)
    axis = write.integers((1,), "heads_axis")
    cosines, sines = (
        write.node("Unsqueeze", [write.node(op, [twice], f"{op.lower()}_rows"), axis], f"{op.lower()}_heads")
        for op in ("Cos", "Sin")
    )
    return cosines, sines


def _rotate(write: LayerWriter, x: str, angles: tuple[str, str], head_width: int, name: str) -> str:
    """Each pair of channels, half of the channels apart, turned by the token's angle."""
    half = head_width // 2
    axis = write.integers((-1,), "last_axis")
    bounds = [write.integers((bound,), f"rotary_{bound}") for bound in (0, half, head_width)]
    low, high = (
        write.node("Slice", [x, start, end, axis], f"{name}_{part}")
        for part, start, end in (("low", bounds[0], bounds[1]), ("high", bounds[1], bounds[2]))
    )
    turned = write.node("Concat", [write.node("Neg", [high], f"{name}_negative"), low], f"{name}_turned", axis=-1)
    parts = [
        write.node("Mul", pair, f"{name}_{key}")
        for key, pair in (("cos", [x, angles[0]]), ("sin", [turned, angles[1]]))
    ]
    return write.node("Add", parts, name)


def _repeat_heads(write: LayerWriter, x: str, form: tuple[Sizes, int], name: str) -> str:
    """Every head several times, for queries that share it; x is (batch, heads, any, head_width)."""
    few, repeats = form
    if repeats == 1:
        return x
    wide = write.node("Unsqueeze", [x, write.integers((2,), "repeat_axis")], f"{name}_wide")
    shape = write.integers((1, 1, repeats, 1, 1), "repeat_shape")
    expanded = write.node("Expand", [wide, shape], f"{name}_expanded")
    target = write.integers((few.rows[0], few.heads * repeats, -1, few.head_width), "repeated_shape")
    return write.node("Reshape", [expanded, target], f"{name}_repeated")
