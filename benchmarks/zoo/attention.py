"""Parts of transformers that only benchmark networks have: windows of images, causal masks, other activations."""

from collections.abc import Callable, Sequence
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import HIDDEN_BY, Sizes, join_heads, split_heads, weighted_values

Activation = Callable[[LayerWriter, str, str], str]


def image_to_tokens(write: LayerWriter, x: str, shape: tuple[int, int | str, int], name: str) -> str:
    """(batch, width, height, width of the image) as (batch, tokens, width), which is `shape` (tokens: any symbol)."""
    batch, tokens, width = shape
    flat_shape = (batch, width, tokens if isinstance(tokens, int) else -1)
    flat = write.node("Reshape", [x, write.integers(flat_shape, f"{name}_flat_shape")], f"{name}_flat")
    return write.node("Transpose", [flat], f"{name}_rows", perm=[0, 2, 1])


def tokens_to_image(write: LayerWriter, x: str, shape: Sequence[int] | str, name: str) -> str:
    """(batch, tokens, width) as (batch, width, height, width of the image): `shape`, or a value that holds it."""
    columns = write.node("Transpose", [x], f"{name}_columns", perm=[0, 2, 1])
    target = shape if isinstance(shape, str) else write.integers(shape, f"{name}_image_shape")
    return write.node("Reshape", [columns, target], f"{name}_image")


def image_to_windows(write: LayerWriter, x: str, apart: tuple[int, ...], name: str) -> str:
    """(batch, side, side, width) as (windows of the batch, tokens, width), for `apart`, (batch, windows along a side,
    a window's side, the same two again, width).
    """
    batch, along, window, _, _, width = apart
    split = write.node("Reshape", [x, write.integers(apart, f"{name}_apart_shape")], f"{name}_apart")
    turned = write.node("Transpose", [split], f"{name}_windows_apart", perm=[0, 1, 3, 2, 4, 5])
    shape = write.integers((batch * along**2, window**2, width), f"{name}_windows_shape")
    return write.node("Reshape", [turned, shape], f"{name}_windows")


def windows_to_image(write: LayerWriter, rows: str, apart: tuple[int, ...], name: str) -> str:
    """The inverse of `image_to_windows`."""
    batch, along, window, _, _, width = apart
    shape = write.integers((batch, along, along, window, window, width), f"{name}_tiles_shape")
    tiles = write.node("Reshape", [rows, shape], f"{name}_tiles")
    turned = write.node("Transpose", [tiles], f"{name}_image_apart", perm=[0, 1, 3, 2, 4, 5])
    whole = write.integers((batch, along * window, along * window, width), f"{name}_image_shape")
    return write.node("Reshape", [turned, whole], f"{name}_image")


def hidden_where(write: LayerWriter, absent: NDArray[np.bool_], name: str) -> str:
    """What is added to the scores to leave out those where `absent`."""
    return write.weight(np.where(absent, HIDDEN_BY, 0.0).astype(np.float32), name)


def causal_mask(write: LayerWriter, tokens: int, past: int) -> str:
    """What hides later tokens, (tokens, past + tokens); none when there is one token, which sees all."""
    if tokens == 1:
        return ""
    return hidden_where(write, np.triu(np.ones((tokens, past + tokens), bool), past + 1), "later_tokens")


def pre_norm_layer(
    write: LayerWriter,
    x: str,
    sizes: Sizes,
    name: str,
    *,
    activation: Activation,
    mask: str = "",
    key_bias: bool = True,
) -> str:
    """Attention of normalized tokens to each other, then the feed-forward part; each is added to what it got."""
    square = (sizes.width, sizes.width)
    normal = write.layer_norm(x, sizes.width, f"{name}_norm1")
    query, key, value = (
        split_heads(write, write.linear(normal, square, f"{name}_{part}", bias=bias), sizes, f"{name}_{part}")
        for part, bias in (("query", True), ("key", key_bias), ("value", True))
    )
    mixed = weighted_values(write, query, key, value, sizes.head_width, f"{name}_attention", mask=mask)
    attended = write.linear(join_heads(write, mixed, sizes, f"{name}_attention"), square, f"{name}_projection")
    x = write.node("Add", [x, attended], f"{name}_attended")
    normal = write.layer_norm(x, sizes.width, f"{name}_norm2")
    return write.node("Add", [x, feed_forward(write, normal, sizes, name, activation)], f"{name}_out")


def feed_forward(write: LayerWriter, x: str, sizes: Sizes, name: str, activation: Activation) -> str:
    """Two linear layers with an activation between."""
    inner = activation(write, write.linear(x, (sizes.width, sizes.hidden), f"{name}_up"), f"{name}_activated")
    return write.linear(inner, (sizes.hidden, sizes.width), f"{name}_down")


def quick_gelu(write: LayerWriter, x: str, name: str) -> str:
    """x · sigmoid(1.702 x), which CLIP has for GELU."""
    scaled = write.node("Mul", [x, write.number(1.702, f"{name}_slope")], f"{name}_scaled")
    return write.node("Mul", [x, write.node("Sigmoid", [scaled], f"{name}_sigmoid")], name)


def gelu_by_tanh(write: LayerWriter, x: str, name: str) -> str:
    """x · Φ(x) by the hyperbolic tangent, as GPT-2 has it: ½x(1 + tanh(√(2/π)(x + 0.044715x³)))."""
    three, cubic, root, one, half = (write.number(number, f"{name}_{key}") for key, number in _GELU_TANH.items())
    cube = write.node("Mul", [write.node("Pow", [x, three], f"{name}_cube"), cubic], f"{name}_cubic_term")
    inner = write.node("Mul", [write.node("Add", [x, cube], f"{name}_sum"), root], f"{name}_inner")
    shifted = write.node("Add", [write.node("Tanh", [inner], f"{name}_tanh"), one], f"{name}_plus")
    return write.node("Mul", [write.node("Mul", [x, half], f"{name}_half_x"), shifted], name)


_GELU_TANH = {"three": 3.0, "cubic": 0.044715, "root": sqrt(2 / pi), "one": 1.0, "half": 0.5}
