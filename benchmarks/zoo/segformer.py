"""SegFormer, semantic segmentation by a hierarchical transformer, as an ONNX model."""

import onnx

from benchmarks.zoo.attention import image_to_tokens, tokens_to_image
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import Sizes, gelu, join_heads, split_heads, weighted_values

# width, heads, reduction of keys and values, kernel and stride of the patches
_STAGES = ((32, 1, 8, 7, 4), (64, 2, 4, 3, 2), (160, 5, 2, 3, 2), (256, 8, 1, 3, 2))
Side = int | str
"""The side of a square image, or the name of a value with the height and the width of any, int64 (2,)."""


def segformer_b0(
    *,
    batch: int = 1,
    image: int | tuple[str, str] = 256,
    layers: int = 2,
    decoder: int = 256,
    classes: int = 150,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes, image / 4, image / 4).

    Configuration B0 of Xie et al., "SegFormer" (arXiv 2105.15203), with the classes of ADE20K. `layers` is that of
    each of the four stages; `image` is a multiple of 32. Two symbols in its place leave height and width, multiples of
    32, to the caller.
    """
    extents = (image, image) if isinstance(image, int) else image
    write = LayerWriter("segformer_b0", (batch, 3, *extents), seed)
    x, taken = write.input, 3
    levels: list[tuple[str, int, Side]] = []
    for stage, (width, heads, reduction, kernel, stride) in enumerate(_STAGES):
        name = f"stage{stage}"
        x = write.shifted_convolution(x, (taken, width), kernel, f"{name}_patch", stride=stride)
        taken, side = width, _side_of(write, x, image, 2 ** (stage + 2), f"{name}_side")
        sizes = Sizes(batch, _tokens(side), width, heads, 4 * width)
        x = write.layer_norm(
            image_to_tokens(write, x, (batch, sizes.tokens, width), f"{name}_patch"), width, f"{name}_patch_norm"
        )
        for layer in range(layers):
            x = _layer(write, x, sizes, side, reduction, f"{name}_layer{layer}")
        normal = write.layer_norm(x, width, f"{name}_norm")
        x = tokens_to_image(write, normal, _shape(write, (batch, width), side, name), name)
        levels.append((x, width, side))
    scores = _decode(write, levels, batch, decoder, classes)
    return write.finish(scores, (batch, classes, *(_quarter(extent) for extent in extents)))


def _quarter(extent: int | str) -> int | str:
    return extent // 4 if isinstance(extent, int) else f"{extent}_quarter"


def _side_of(write: LayerWriter, x: str, image: int | tuple[str, str], shrink: int, name: str) -> Side:
    """The side of the picture `x`, by `shrink` smaller than the image."""
    if isinstance(image, int):
        return image // shrink
    shape = write.node("Shape", [x], f"{name}_shape")
    bounds = [write.integers((number,), f"side_{key}") for key, number in (("start", 2), ("end", 4), ("axis", 0))]
    return write.node("Slice", [shape, *bounds], name)


def _tokens(side: Side, reduction: int = 1) -> int | str:
    return (side // reduction) ** 2 if isinstance(side, int) else "tokens"


def _shape(write: LayerWriter, outer: tuple[int, int], side: Side, name: str) -> tuple[int, ...] | str:
    """The shape (batch, channels, height, width of the image): numbers, or a value that holds them."""
    if isinstance(side, int):
        return (*outer, side, side)
    return write.node("Concat", [write.integers(outer, f"{name}_outer"), side], f"{name}_picture_shape", axis=0)


def _layer(write: LayerWriter, x: str, sizes: Sizes, side: Side, reduction: int, name: str) -> str:
    """Attention to a reduced image, then the feed-forward part, which mixes neighbors; each is added."""
    (batch, _), width = sizes.rows, sizes.width
    square = (width, width)
    normal = write.layer_norm(x, width, f"{name}_norm1")
    query = split_heads(write, write.linear(normal, square, f"{name}_query"), sizes, f"{name}_query")
    reduced, reduced_sizes = normal, sizes
    if reduction > 1:
        few = _tokens(side, reduction)
        shape = _shape(write, (batch, width), side, f"{name}_reduction")
        picture = tokens_to_image(write, normal, shape, f"{name}_reduction")
        picture = write.shifted_convolution(picture, square, reduction, f"{name}_reduction", stride=reduction, pad=0)
        rows = image_to_tokens(write, picture, (batch, few, width), f"{name}_reduction")
        reduced = write.layer_norm(rows, width, f"{name}_reduction_norm")
        reduced_sizes = Sizes(batch, few, width, sizes.heads, sizes.hidden)
    key, value = (
        split_heads(write, write.linear(reduced, square, f"{name}_{part}"), reduced_sizes, f"{name}_{part}")
        for part in ("key", "value")
    )
    mixed = weighted_values(write, query, key, value, sizes.head_width, f"{name}_attention")
    attended = write.linear(join_heads(write, mixed, sizes, f"{name}_attention"), square, f"{name}_projection")
    x = write.node("Add", [x, attended], f"{name}_attended")
    hidden = sizes.hidden
    inner = write.linear(write.layer_norm(x, width, f"{name}_norm2"), (width, hidden), f"{name}_up")
    picture = tokens_to_image(write, inner, _shape(write, (batch, hidden), side, f"{name}_mix"), f"{name}_mix")
    picture = write.shifted_convolution(picture, (hidden, hidden), 3, f"{name}_mix", groups=hidden)
    inner = gelu(write, image_to_tokens(write, picture, (batch, sizes.tokens, hidden), f"{name}_mix"), f"{name}_gelu")
    return write.node("Add", [x, write.linear(inner, (hidden, width), f"{name}_down")], f"{name}_out")


def _decode(write: LayerWriter, levels: list[tuple[str, int, Side]], batch: int, decoder: int, classes: int) -> str:
    """Every level at the width of the decoder and the size of the first, the deepest first; then the classes."""
    first = levels[0][2]
    parts = []
    for level, (x, width, side) in enumerate(levels):
        name = f"decoder{level}"
        rows = write.linear(image_to_tokens(write, x, (batch, _tokens(side), width), name), (width, decoder), name)
        part = tokens_to_image(write, rows, _shape(write, (batch, decoder), side, name), name)
        if side != first:
            shape = _shape(write, (batch, decoder), first, f"{name}_first")
            sizes = shape if isinstance(shape, str) else write.integers(shape, "decoder_size")
            attributes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
            part = write.node("Resize", [part, "", "", sizes], f"{name}_resized", **attributes)
        parts.append(part)
    joined = write.node("Concat", parts[::-1], "decoder_joined", axis=1)
    fused = write.convolution(joined, (len(levels) * decoder, decoder), 1, "decoder_fuse")
    fused = write.node("Relu", [write.batch_norm(fused, decoder, "decoder_bn")], "decoder_relu")
    return write.shifted_convolution(fused, (decoder, classes), 1, "logits")
