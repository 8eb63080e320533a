"""Attention, GELU and other parts of transformers as ONNX nodes, in the form that exporters write.

Attention is two products around a softmax, and GELU a formula of five nodes; graph passes recognize both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from retune.compiler.frontend.zoo.layers import LayerWriter

_HIDDEN_BY = -10000.0
"""Added to the scores of tokens that a mask leaves out."""

Activation = Callable[[LayerWriter, str, str], str]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that the blocks of a transformer share.

    `width` is the size of a token's vector and is divided among `heads`; `hidden` is the width inside the feed-forward
    part. `batch` and `tokens` may be symbols for sizes that are known only at run time.
    """

    batch: int | str
    tokens: int | str
    width: int
    heads: int
    hidden: int

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.width // self.heads

    @property
    def rows(self) -> tuple[int, int]:
        """The batch and the tokens in the target of a Reshape that keeps both, where 0 stands for a symbol."""
        batch, tokens = (extent if isinstance(extent, int) else 0 for extent in (self.batch, self.tokens))
        return batch, tokens


def split_heads(write: LayerWriter, x: str, sizes: Sizes, name: str) -> str:
    """(batch, tokens, width) as (batch, heads, tokens, width / heads)."""
    shape = write.integers((*sizes.rows, sizes.heads, sizes.head_width), f"{name}_split_shape")
    apart = write.node("Reshape", [x, shape], f"{name}_split")
    return write.node("Transpose", [apart], f"{name}_heads", perm=[0, 2, 1, 3])


def join_heads(write: LayerWriter, x: str, sizes: Sizes, name: str) -> str:
    """(batch, heads, tokens, width / heads) as (batch, tokens, width)."""
    turned = write.node("Transpose", [x], f"{name}_turned", perm=[0, 2, 1, 3])
    shape = write.integers((*sizes.rows, sizes.width), f"{name}_joined_shape")
    return write.node("Reshape", [turned, shape], f"{name}_joined")


def image_to_tokens(write: LayerWriter, x: str, shape: tuple[int, int, int], name: str) -> str:
    """(batch, width, height, width of the image) as (batch, tokens, width), which is `shape`."""
    batch, tokens, width = shape
    flat = write.node("Reshape", [x, write.integers((batch, width, tokens), f"{name}_flat_shape")], f"{name}_flat")
    return write.node("Transpose", [flat], f"{name}_rows", perm=[0, 2, 1])


def tokens_to_image(write: LayerWriter, x: str, shape: tuple[int, int, int, int], name: str) -> str:
    """(batch, tokens, width) as (batch, width, height, width of the image), which is `shape`."""
    columns = write.node("Transpose", [x], f"{name}_columns", perm=[0, 2, 1])
    return write.node("Reshape", [columns, write.integers(shape, f"{name}_image_shape")], f"{name}_image")


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


def weighted_values(
    write: LayerWriter, query: str, key: str, value: str, head_width: int, name: str, *, mask: str = ""
) -> str:
    """softmax(query · keyᵀ / √head_width + mask) · value, for operands of (batch, heads, tokens, head_width)."""
    turned = write.node("Transpose", [key], f"{name}_key_turned", perm=[0, 1, 3, 2])
    products = write.node("MatMul", [query, turned], f"{name}_products")
    scale = write.number(sqrt(head_width), f"{name}_scale")
    scores = write.node("Div", [products, scale], f"{name}_scores")
    if mask:
        scores = write.node("Add", [scores, mask], f"{name}_masked")
    shares = write.node("Softmax", [scores], f"{name}_shares", axis=-1)
    return write.node("MatMul", [shares, value], f"{name}_values")


def padding_mask(write: LayerWriter, attended: str) -> str:
    """What is added to the scores, (batch, 1, 1, tokens), given 1 for a token and 0 for none, int64 (batch, tokens)."""
    real = write.node("Cast", [attended], "mask_float", to=TensorProto.FLOAT)
    wide = write.node("Unsqueeze", [real, write.integers((1, 2), "mask_axes")], "mask_wide")
    absent = write.node("Sub", [write.number(1.0, "mask_one"), wide], "mask_absent")
    return write.node("Mul", [absent, write.number(_HIDDEN_BY, "mask_by")], "mask")


def hidden_where(write: LayerWriter, absent: NDArray[np.bool_], name: str) -> str:
    """What is added to the scores to leave out those where `absent`."""
    return write.weight(np.where(absent, _HIDDEN_BY, 0.0).astype(np.float32), name)


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


def gelu(write: LayerWriter, x: str, name: str) -> str:
    """x · Φ(x) by the error function."""
    root, one, half = (write.number(number, f"{name}_{key}") for key, number in _GELU.items())
    erf = write.node("Erf", [write.node("Div", [x, root], f"{name}_scaled")], f"{name}_erf")
    twice = write.node("Mul", [x, write.node("Add", [erf, one], f"{name}_plus")], f"{name}_twice")
    return write.node("Mul", [twice, half], name)


def gelu_by_tanh(write: LayerWriter, x: str, name: str) -> str:
    """x · Φ(x) by the hyperbolic tangent, as GPT-2 has it: ½x(1 + tanh(√(2/π)(x + 0.044715x³)))."""
    three, cubic, root, one, half = (write.number(number, f"{name}_{key}") for key, number in _GELU_TANH.items())
    cube = write.node("Mul", [write.node("Pow", [x, three], f"{name}_cube"), cubic], f"{name}_cubic_term")
    inner = write.node("Mul", [write.node("Add", [x, cube], f"{name}_sum"), root], f"{name}_inner")
    shifted = write.node("Add", [write.node("Tanh", [inner], f"{name}_tanh"), one], f"{name}_plus")
    return write.node("Mul", [write.node("Mul", [x, half], f"{name}_half_x"), shifted], name)


_GELU = {"root": sqrt(2), "one": 1.0, "half": 0.5}
_GELU_TANH = {"three": 3.0, "cubic": 0.044715, "root": sqrt(2 / pi), "one": 1.0, "half": 0.5}
