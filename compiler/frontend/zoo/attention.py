"""Attention, GELU and other parts of transformers as ONNX nodes, in the form that exporters write.

Attention is two products around a softmax, and GELU a formula of five nodes; graph passes recognize both.
"""

from dataclasses import dataclass
from math import sqrt

from onnx import TensorProto

from retune.compiler.frontend.zoo.layers import LayerWriter

HIDDEN_BY = -10000.0
"""Added to the scores of tokens that a mask leaves out."""


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
    return write.node("Mul", [absent, write.number(HIDDEN_BY, "mask_by")], "mask")


def gelu(write: LayerWriter, x: str, name: str) -> str:
    """x · Φ(x) by the error function."""
    root, one, half = (write.number(number, f"{name}_{key}") for key, number in _GELU.items())
    erf = write.node("Erf", [write.node("Div", [x, root], f"{name}_scaled")], f"{name}_erf")
    twice = write.node("Mul", [x, write.node("Add", [erf, one], f"{name}_plus")], f"{name}_twice")
    return write.node("Mul", [twice, half], name)


_GELU = {"root": sqrt(2), "one": 1.0, "half": 0.5}
