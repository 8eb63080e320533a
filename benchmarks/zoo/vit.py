"""Vision Transformer as an ONNX model; layer normalization precedes each half of a layer (pre-norm)."""

import onnx

from benchmarks.zoo.attention import image_to_tokens
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import Sizes, gelu, join_heads, split_heads, weighted_values

# That of the reference implementation.
_EPSILON = 1e-6


def vit_small(
    *,
    batch: int = 1,
    image: int = 224,
    patch: int = 16,
    layers: int = 12,
    width: int = 384,
    heads: int = 6,
    hidden: int = 1536,
    classes: int = 1000,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `image` is a multiple of `patch`."""
    write = LayerWriter("vit_small", (batch, 3, image, image), seed)
    tokens = (image // patch) ** 2 + 1
    sizes = Sizes(batch, tokens, width, heads, hidden)
    x = patches_after_class_token(write, (batch, tokens, width), patch)
    for layer in range(layers):
        x = _layer(write, x, sizes, f"layer{layer}")
    x = write.layer_norm(x, width, "norm", epsilon=_EPSILON)
    first = write.node("Gather", [x, write.integers((0,), "first_token")], "first", axis=1)
    flat = write.node("Flatten", [first], "features", axis=1)
    return write.finish(write.fully_connected(flat, (width, classes), "logits"), (batch, classes))


def patches_after_class_token(write: LayerWriter, shape: tuple[int, int, int], patch: int, *, bias: bool = True) -> str:
    """Patches as vectors after the class token, with the vectors of their places added: (batch, tokens, width)."""
    batch, tokens, width = shape
    weight = write.normal((width, 3, patch, patch), (3 * patch * patch) ** -0.5, "patch_weight")
    offsets = [write.normal((width,), 0.02, "patch_bias")] if bias else []
    attributes = {"strides": [patch] * 2, "kernel_shape": [patch] * 2}
    squares = write.node("Conv", [write.input, weight, *offsets], "patch", **attributes)
    rows = image_to_tokens(write, squares, (batch, tokens - 1, width), "patch")
    token = write.normal((1, 1, width), 0.5, "class_token")
    tokens_of = write.node("Expand", [token, write.integers((batch, 1, width), "class_shape")], "class_tokens")
    joined = write.node("Concat", [tokens_of, rows], "tokens", axis=1)
    return write.node("Add", [joined, write.normal((1, tokens, width), 0.3, "places")], "placed")


def _layer(write: LayerWriter, x: str, sizes: Sizes, name: str) -> str:
    """Attention, then the feed-forward part; each is added to what it got."""
    width, square = sizes.width, (sizes.width, sizes.width)
    normal = write.layer_norm(x, width, f"{name}_norm1", epsilon=_EPSILON)
    parts = write.split(
        write.linear(normal, (width, 3 * width), f"{name}_qkv"), 2, [f"{name}_{part}" for part in "qkv"]
    )
    query, key, value = (split_heads(write, part, sizes, part) for part in parts)
    mixed = weighted_values(write, query, key, value, sizes.head_width, f"{name}_attention")
    attended = write.linear(join_heads(write, mixed, sizes, f"{name}_attention"), square, f"{name}_projection")
    x = write.node("Add", [x, attended], f"{name}_attended")
    normal = write.layer_norm(x, width, f"{name}_norm2", epsilon=_EPSILON)
    inner = gelu(write, write.linear(normal, (width, sizes.hidden), f"{name}_up"), f"{name}_gelu")
    return write.node("Add", [x, write.linear(inner, (sizes.hidden, width), f"{name}_down")], f"{name}_out")
