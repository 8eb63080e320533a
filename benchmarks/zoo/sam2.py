"""SAM 2's encoder of images, Hiera and the pyramid of its features, as an ONNX model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.zoo.attention import feed_forward, image_to_windows, windows_to_image
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import Sizes, gelu, join_heads, split_heads, weighted_values

_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class _Layer:
    """Sizes of a layer: `side` of the image of tokens before it, `window` that of a window, 0 for one around all
    tokens. Where it `pools`, every second row and column of tokens is left, of width `made`.
    """

    batch: int
    side: int
    window: int
    taken: int
    made: int
    heads: int
    pools: bool

    @property
    def left(self) -> int:
        """The side of the image of tokens after the layer."""
        return self.side // 2 if self.pools else self.side

    @property
    def around(self) -> int:
        """The side of a window before the layer."""
        return self.window or self.side

    @property
    def along(self) -> int:
        """The windows in a row, of which the last may reach beyond the image."""
        return -(-self.side // self.around)

    @property
    def within(self) -> int:
        """The side of a window after the layer."""
        return self.around // 2 if self.pools else self.around


def sam2_tiny_encoder(
    *,
    batch: int = 1,
    image: int = 1024,
    layers: Sequence[int] = (1, 2, 7, 2),
    width: int = 96,
    windows: Sequence[int] = (8, 4, 14, 7),
    whole: Collection[int] = (5, 7, 9),
    features: int = 256,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), outputs (batch, features, side, side) for a side of a quarter, an eighth and a
    sixteenth of the image.

    Configuration T of Ravi et al., "SAM 2" (arXiv 2408.00714). `layers` and `windows` are those of each stage; `width`
    is that of the first, which has one head, and doubled, as the heads are, by each that follows. The layers numbered
    in `whole` attend to all tokens. `image` is a multiple of 32, a quarter of it one of the first windows' side.
    """
    write = LayerWriter("sam2_tiny_encoder", (batch, 3, image, image), seed)
    side = image // 4
    x = write.shifted_convolution(write.input, (3, width), 7, "patch", stride=4, pad=3)
    x = write.node("Add", [x, _places(write, width, side, windows[0])], "placed")
    x = write.node("Transpose", [x], "placed_last", perm=[0, 2, 3, 1])
    made, heads, number = width, 1, 0
    maps: list[tuple[str, int, int]] = []
    for stage, count in enumerate(layers):
        for first in (True, *[False] * (count - 1)):
            pools = bool(stage) and first
            # A stage's first layer still has the windows of the stage before, which pooling halves.
            window = 0 if number in whole else windows[stage - pools]
            layer = _Layer(batch, side, window, made, made * (1 + pools), heads * (1 + pools), pools)
            x = _layer(write, x, layer, f"layer{number}")
            side, made, heads, number = layer.left, layer.made, layer.heads, number + 1
        maps.append((x, made, side))
    return write.finish_all(_pyramid(write, maps, batch, features))


def _places(write: LayerWriter, width: int, side: int, window: int) -> str:
    """What is added for a token's place, (1, width, side, side): in the image and, repeated, in a window."""
    image = write.normal((1, width, 7, 7), 0.3, "place_in_image")
    size = write.integers((1, width, side, side), "place_size")
    smooth = write.node(
        "Resize",
        [image, "", "", size],
        "place_in_image_smooth",
        mode="cubic",
        coordinate_transformation_mode="half_pixel",
        cubic_coeff_a=-0.75,
    )
    inside = write.normal((1, width, window, window), 0.3, "place_in_window")
    repeats = write.integers((1, 1, side // window, side // window), "place_repeats")
    return write.node("Add", [smooth, write.node("Tile", [inside, repeats], "place_in_windows")], "places")


def _layer(write: LayerWriter, x: str, layer: _Layer, name: str) -> str:
    """Attention in windows, then the feed-forward part; each is added to what it got."""
    batch, made = layer.batch, layer.made
    normal = write.layer_norm(x, layer.taken, f"{name}_norm1", epsilon=_EPSILON)
    if layer.pools:
        x = _pooled(write, write.linear(normal, (layer.taken, made), f"{name}_skipped"), f"{name}_skipped")
    rows = _windows(write, normal, layer, name)
    names = [f"{name}_{part}" for part in ("query", "key", "value")]
    query, key, value = write.split(write.linear(rows, (layer.taken, 3 * made), f"{name}_qkv"), 2, names)
    count = batch * layer.along**2
    before = Sizes(count, layer.around**2, made, layer.heads, 4 * made)
    after = Sizes(count, layer.within**2, made, layer.heads, 4 * made)
    if layer.pools:
        shape = write.integers((count, layer.around, layer.around, made), f"{name}_query_image_shape")
        pooled = _pooled(write, write.node("Reshape", [query, shape], f"{name}_query_image"), f"{name}_query")
        shape = write.integers((count, layer.within**2, made), f"{name}_query_rows_shape")
        query = write.node("Reshape", [pooled, shape], f"{name}_query_rows")
    operands = zip((query, key, value), (after, before, before), names, strict=True)
    query, key, value = (split_heads(write, part, sizes, part_name) for part, sizes, part_name in operands)
    mixed = weighted_values(write, query, key, value, before.head_width, f"{name}_attention")
    attended = write.linear(join_heads(write, mixed, after, f"{name}_attention"), (made, made), f"{name}_projection")
    x = write.node("Add", [x, _image(write, attended, layer, name)], f"{name}_attended")
    normal = write.layer_norm(x, made, f"{name}_norm2", epsilon=_EPSILON)
    return write.node("Add", [x, feed_forward(write, normal, after, name, gelu)], f"{name}_out")


def _windows(write: LayerWriter, x: str, layer: _Layer, name: str) -> str:
    """The image (batch, side, side, taken) as (windows of the batch, tokens, taken), with zeros beyond its edges."""
    beyond = layer.along * layer.around - layer.side
    if beyond:
        pads = write.integers((0, 0, 0, 0, 0, beyond, beyond, 0), f"pads_{beyond}")
        x = write.node("Pad", [x, pads], f"{name}_padded")
    return image_to_windows(write, x, (layer.batch, *(layer.along, layer.around) * 2, layer.taken), name)


def _image(write: LayerWriter, rows: str, layer: _Layer, name: str) -> str:
    """The inverse, after the layer: (batch, left, left, made)."""
    x = windows_to_image(write, rows, (layer.batch, *(layer.along, layer.within) * 2, layer.made), name)
    if layer.along * layer.within == layer.left:
        return x
    start, end, axes = (
        write.integers(values, f"{key}_{layer.left}")
        for key, values in (("start", (0, 0)), ("end", (layer.left, layer.left)), ("axes", (1, 2)))
    )
    return write.node("Slice", [x, start, end, axes], f"{name}_inside")


def _pooled(write: LayerWriter, x: str, name: str) -> str:
    """The largest of two by two neighbors, of an image whose channels are last."""
    first = write.node("Transpose", [x], f"{name}_channels_first", perm=[0, 3, 1, 2])
    pooled = write.node("MaxPool", [first], f"{name}_pool", kernel_shape=[2, 2], strides=[2, 2])
    return write.node("Transpose", [pooled], f"{name}_pooled", perm=[0, 2, 3, 1])


def _pyramid(
    write: LayerWriter, maps: Sequence[tuple[str, int, int]], batch: int, features: int
) -> dict[str, tuple[int, int, int, int]]:
    """The maps of all stages but the last with as many features each, and their shapes; that of the last stage is added
    to the one before.
    """
    sides: list[str] = []
    for number, (x, width, _) in enumerate(maps):
        first = write.node("Transpose", [x], f"map{number}_channels_first", perm=[0, 3, 1, 2])
        sides.append(write.shifted_convolution(first, (width, features), 1, f"map{number}_features"))
    *kept, last = sides
    scales = write.weight(np.asarray((1, 1, 2, 2), np.float32), "twice")
    grown = write.node(
        "Resize",
        [last, "", scales],
        "last_grown",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    kept[-1] = write.node("Add", [kept[-1], grown], "features_and_last")
    return {name: (batch, features, side, side) for name, (_, _, side) in zip(kept, maps, strict=False)}
