"""Random nodes of contributed attention and rotary embeddings, with every form of mask, cache and head."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.support.contributed.case import Array, Case, Draw, Operands


def _mask(draw: Draw, batch: int, rows: int, columns: int) -> Array | None:
    """None, lengths, ends and starts, or the keys of all or of each query."""
    form = draw.count(0, 4)
    if form == 0:
        return None
    lengths = draw.rng.integers(1, columns + 1, batch)
    if form == 1:
        return lengths.astype("int32")
    if form == 2:
        starts = draw.rng.integers(0, columns // 2 + 1, batch)
        return np.concatenate([np.minimum(columns, starts + lengths), starts]).astype("int32")
    shape = (batch, columns) if form == 3 else (batch, rows, columns)
    return (draw.rng.random(shape) < 0.7).astype("int32")


def _attributes(draw: Draw, heads: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": draw.count(0, 1)}
    if draw.chance(0.3):
        attributes["scale"] = float(draw.rng.uniform(0.1, 1))
    if draw.chance(0.3):
        attributes["mask_filter_value"] = draw.pick(-5.0, -1e4, -3.4e38)
    return attributes


def _bias(draw: Draw, batch: int, heads: int, rows: int, columns: int) -> Array | None:
    return draw.real(draw.pick(1, batch), draw.pick(1, heads), rows, columns) if draw.chance(0.3) else None


def _attention(draw: Draw) -> Case:
    batch, length, heads, size, hidden = (draw.count(*ends) for ends in ((1, 3), (1, 6), (1, 3), (4, 8), (3, 9)))
    past = draw.real(2, batch, heads, draw.count(0, 4), size) if draw.chance() else None
    columns = length + (0 if past is None else past.shape[3])
    attributes, width = _attributes(draw, heads), size
    if past is None and draw.chance():
        width = draw.count(3, 9)
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * width]
    whole = heads * (2 * size + width)
    operands: Operands = {"x": draw.real(batch, length, hidden), "w": draw.real(hidden, whole), "b": draw.real(whole)}
    operands |= {"mask": _mask(draw, batch, length, columns), "past": past}
    operands["bias"] = _bias(draw, batch, heads, length, columns) if past is None else None
    return Case("Attention", operands, attributes, ("y", "present") if past is not None else ("y",))


def _quantized_attention(draw: Draw) -> Case:
    batch, length, heads, size, hidden = (draw.count(*ends) for ends in ((1, 3), (1, 6), (1, 3), (4, 8), (3, 9)))
    past = draw.real(2, batch, heads, draw.count(0, 4), size) if draw.chance() else None
    columns = length + (0 if past is None else past.shape[3])
    whole = 3 * heads * size
    shape = draw.pick((), (whole,))
    operands: Operands = {"x": draw.stored("uint8", batch, length, hidden), "w": draw.stored("int8", hidden, whole)}
    operands |= {"b": draw.real(whole), "x_scale": draw.scale(), "w_scale": draw.scale(*shape)}
    operands |= {"mask": _mask(draw, batch, length, columns), "x_zero": draw.zero("uint8")}
    zero = np.zeros(shape, "int8")
    attributes = _attributes(draw, heads)
    attributes.pop("scale", None)  # ONNX Runtime's kernel for CPUs does not read it
    results = ("y", "present") if past is not None else ("y",)
    return Case("QAttention", {**operands, "w_zero": zero, "past": past}, attributes, results)


def _multi_head(draw: Draw) -> Case:
    batch, length, other, heads, size, width = (
        draw.count(*ends) for ends in ((1, 3), (1, 6), (1, 6), (1, 3), (4, 8), (4, 8))
    )
    form, past = draw.pick("flat", "cross", "cache"), {}
    results, columns = ["y"], other
    if form == "cache":
        other, width, before = length, size, draw.count(0, 4)
        past = {key: draw.real(batch, heads, before, size) for key in ("past_key", "past_value")}
        results += ["present_key", "present_value"]
        columns = length + before
    operands: Operands = {"q": draw.real(batch, length, heads * size)}
    for name, extent in (("k", size), ("v", width)):
        shape = (batch, heads, other, extent) if form == "cross" else (batch, other, heads * extent)
        operands[name] = draw.real(*shape)
    operands["b"] = draw.real(heads * (2 * size + width)) if draw.chance() else None
    mask = _mask(draw, batch, length, columns)
    two_ends = mask is not None and mask.ndim == 1 and (len(mask) != batch or form == "cache")
    operands |= {"mask": None if two_ends else mask, "bias": _bias(draw, batch, heads, length, columns), **past}
    attributes = _attributes(draw, heads)
    if form != "cache" and other != length:
        attributes["unidirectional"] = 0
    # A number near -10000 has a last bit of 0.001: a row of masked keys depends on the order of the sums.
    return Case("MultiHeadAttention", operands, attributes, tuple(results), tolerance=1e-3)


def _grouped(draw: Draw) -> Case:
    batch, own, repeats = draw.count(1, 3), draw.count(1, 3), draw.count(1, 3)
    heads, size, length, form = own * repeats, 16, draw.count(1, 6), draw.pick("prompt", "room", "even", "ragged")
    before = np.zeros(batch, int)
    if form in ("even", "ragged"):
        length, batch = (1, batch) if form == "ragged" else (length, 1)
        before = draw.rng.integers(1, 6, batch)
    total = int(before.max()) + length
    room = draw.count(total, total + 3) if form == "room" or draw.chance() else int(before.max())
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": own}
    for key, values in (("scale", (0.3, 0.7)), ("softcap", (0.6, 2.0)), ("local_window_size", (1, 2, 4))):
        if draw.chance(0.3):
            attributes[key] = draw.pick(*values)
    operands: Operands = {"q": draw.real(batch, length, heads * size)}
    operands |= {name: draw.real(batch, length, own * size) for name in "kv"}
    if draw.chance(0.3):
        operands |= {"q": draw.real(batch, length, (heads + 2 * own) * size), "k": None, "v": None}
    has_cache = form != "prompt" or draw.chance()
    operands |= {name: draw.real(batch, own, room, size) if has_cache else None for name in ("past_k", "past_v")}
    operands |= {"last": (before + length - 1).astype("int32"), "total": np.asarray([total], "int32")}
    operands |= dict.fromkeys(("cos", "sin", "places"))
    if draw.chance():
        attributes |= {"do_rotary": 1, "rotary_interleaved": draw.count(0, 1)}
        operands |= {"cos": draw.real(24, size // 2), "sin": draw.real(24, size // 2)}
        operands["places"] = draw.rng.integers(0, 20, (batch, length)) if draw.chance(0.3) else None
    operands["bias"] = _bias(draw, batch, heads, length, total)
    operands["sink"] = draw.real(heads) if draw.chance(0.3) else None
    if operands["sink"] is None and draw.chance(0.3):
        attributes["smooth_softmax"] = 1
    constants = frozenset({"total", *(["last"] if draw.chance() else [])})
    return Case("GroupQueryAttention", operands, attributes, ("y", "keys", "values"), constants)


def _rotary(draw: Draw) -> Case:
    batch, length, heads, half = draw.count(1, 3), draw.count(1, 6), draw.count(1, 3), draw.pick(2, 4, 8)
    attributes: dict[str, Any] = {"interleaved": draw.count(0, 1)}
    size = 2 * half
    if draw.chance():
        size += draw.pick(0, 4)
        attributes |= {"rotary_embedding_dim": 2 * half, "num_heads": heads}
    shape = draw.pick((batch, heads, length, size), (batch, length, heads * size))
    places = draw.rng.integers(0, 12, draw.pick((1,), (batch, length)))
    operands: Operands = {
        "x": draw.real(*shape),
        "places": places,
        "cos": draw.real(20, half),
        "sin": draw.real(20, half),
    }
    return Case("RotaryEmbedding", operands, attributes)


CASES: Mapping[str, Callable[[Draw], Case]] = {
    "Attention": _attention,
    "GroupQueryAttention": _grouped,
    "MultiHeadAttention": _multi_head,
    "QAttention": _quantized_attention,
    "RotaryEmbedding": _rotary,
}
"""A random node of each operator."""
