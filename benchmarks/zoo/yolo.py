"""YOLOv8, an object detector of three scales, with the decoding of its boxes, as ONNX model.

Batch normalization is not folded. Overlapping boxes are left in: what suppresses them follows the network.
"""

import numpy as np
import onnx

from benchmarks.zoo.layers import LayerWriter

_BINS = 16
"""Distances that the sides of a box choose from, in cells."""
_STRIDES = (8, 16, 32)
_DOWN = ((2, 1), (4, 2), (8, 2), (16, 1))
"""Channels, as multiples of the width, and bottlenecks of the stages of the backbone."""


def yolov8n(*, batch: int = 1, image: int = 640, width: int = 16, classes: int = 80, seed: int = 0) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output `boxes` (batch, 4 + classes, cells): the center, width and height of each
    cell's box in pixels, and the scores of the classes; `image` is a multiple of 32.

    Configuration n of YOLOv8 (Jocher et al., Ultralytics, 2023): `width` is the number of channels of the first layer.
    """
    write = LayerWriter("yolov8n", (batch, 3, image, image), seed)
    blocks = _Blocks(write)
    x = blocks.layer(write.input, (3, width), 3, "stem", stride=2)
    taken, levels = width, []
    for stage, (multiple, count) in enumerate(_DOWN):
        made = multiple * width
        x = blocks.layer(x, (taken, made), 3, f"down{stage}", stride=2)
        x = blocks.cross_stage(x, (made, made), count, f"stage{stage}", residual=True)
        taken = made
        levels.append(x)
    deep = _pyramid_pool(blocks, x, taken, "pool")
    heads = _fuse_levels(blocks, (levels[1], levels[2], deep), width)
    widths = (4 * width, 8 * width, 16 * width)
    sides = tuple(image // stride for stride in _STRIDES)
    return write.finish(_decode(blocks, heads, widths, sides, (batch, classes)), (batch, 4 + classes, _cells(sides)))


class _Blocks:
    """Writes the layers: a convolution, batch normalization and SiLU, and stages of these."""

    def __init__(self, write: LayerWriter) -> None:
        self.write = write

    def layer(self, x: str, channels: tuple[int, int], kernel: int, name: str, *, stride: int = 1) -> str:
        """Convolution, batch normalization, activation."""
        x = self.write.convolution(x, channels, kernel, f"{name}_conv", stride=stride)
        return self.write.silu(self.write.batch_norm(x, channels[1], f"{name}_bn", gain=1.0), f"{name}_silu")

    def cross_stage(self, x: str, channels: tuple[int, int], count: int, name: str, *, residual: bool = False) -> str:
        """Half of the channels pass through bottlenecks; all that lies between them is joined (C2f)."""
        taken, made = channels
        half = made // 2
        both = self.layer(x, (taken, made), 1, f"{name}_in")
        parts = list(self.write.split(both, 1, [f"{name}_kept", f"{name}_passed"]))
        for block in range(count):
            inner = self.layer(parts[-1], (half, half), 3, f"{name}_block{block}_a")
            inner = self.layer(inner, (half, half), 3, f"{name}_block{block}_b")
            parts.append(self.write.node("Add", [parts[-1], inner], f"{name}_block{block}") if residual else inner)
        joined = self.write.node("Concat", parts, f"{name}_joined", axis=1)
        return self.layer(joined, ((2 + count) * half, made), 1, f"{name}_out")


def _pyramid_pool(blocks: _Blocks, x: str, channels: int, name: str) -> str:
    """The largest values around each cell at three ranges, beside its own (SPPF)."""
    half = channels // 2
    parts = [blocks.layer(x, (channels, half), 1, f"{name}_in")]
    for part in range(3):
        attributes = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}
        parts.append(blocks.write.node("MaxPool", [parts[-1]], f"{name}_{part}", **attributes))
    joined = blocks.write.node("Concat", parts, f"{name}_joined", axis=1)
    return blocks.layer(joined, (4 * half, channels), 1, f"{name}_out")


def _fuse_levels(blocks: _Blocks, levels: tuple[str, str, str], width: int) -> tuple[str, str, str]:
    """Deep levels are joined to those before them, and these again to the deep ones."""
    fine, middle, deep = levels
    write = blocks.write
    scales = write.weight(np.asarray((1, 1, 2, 2), np.float32), "upscale")

    def enlarge(x: str, name: str) -> str:
        attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return write.node("Resize", [x, "", scales], name, **attributes)

    def join(x: str, other: str, channels: tuple[int, int], name: str) -> str:
        return blocks.cross_stage(write.node("Concat", [x, other], f"{name}_levels", axis=1), channels, 1, name)

    up = join(enlarge(deep, "up1_large"), middle, (24 * width, 8 * width), "up1")
    first = join(enlarge(up, "up2_large"), fine, (12 * width, 4 * width), "up2")
    shrunk = blocks.layer(first, (4 * width, 4 * width), 3, "shrink1", stride=2)
    second = join(shrunk, up, (12 * width, 8 * width), "head1")
    shrunk = blocks.layer(second, (8 * width, 8 * width), 3, "shrink2", stride=2)
    return first, second, join(shrunk, deep, (24 * width, 16 * width), "head2")


def _cells(sides: tuple[int, ...]) -> int:
    return sum(side**2 for side in sides)


def _decode(
    blocks: _Blocks,
    heads: tuple[str, ...],
    widths: tuple[int, ...],
    sides: tuple[int, ...],
    form: tuple[int, int],
) -> str:
    """Distances to the sides and scores of classes for each cell of all levels; then boxes."""
    (batch, classes), write = form, blocks.write
    box_width, class_width = max(16, widths[0] // 4, 4 * _BINS), max(widths[0], min(classes, 100))
    levels = []
    for level, (x, taken, side) in enumerate(zip(heads, widths, sides, strict=True)):
        parts = []
        for kind, inner, made in (("box", box_width, 4 * _BINS), ("class", class_width, classes)):
            name = f"{kind}{level}"
            part = blocks.layer(x, (taken, inner), 3, f"{name}_a")
            part = blocks.layer(part, (inner, inner), 3, f"{name}_b")
            parts.append(write.shifted_convolution(part, (inner, made), 1, name))
        joined = write.node("Concat", parts, f"level{level}", axis=1)
        shape = write.integers((batch, 4 * _BINS + classes, side**2), f"level{level}_shape")
        levels.append(write.node("Reshape", [joined, shape], f"level{level}_cells"))
    every = write.node("Concat", levels, "levels", axis=2)
    bounds = [write.integers((bound,), f"channel{bound}") for bound in (0, 4 * _BINS, 4 * _BINS + classes)]
    axis = write.integers((1,), "channel_axis")
    sides_of, scores = (
        write.node("Slice", [every, bounds[part], bounds[part + 1], axis], name)
        for part, name in enumerate(("bins", "class_scores"))
    )
    scores = write.node("Sigmoid", [scores], "scores")
    return write.node("Concat", [_boxes(write, sides_of, batch, sides), scores], "boxes", axis=1)


def _boxes(write: LayerWriter, x: str, batch: int, sides: tuple[int, ...]) -> str:
    """(batch, 4, cells) in pixels: a side's distance from its cell is the mean of what the bins say."""
    cells = _cells(sides)
    apart = write.node("Reshape", [x, write.integers((batch, 4, _BINS, cells), "bins_shape")], "bins_apart")
    turned = write.node("Transpose", [apart], "bins_first", perm=[0, 2, 1, 3])
    shares = write.node("Softmax", [turned], "bin_shares", axis=1)
    numbers = write.weight(np.arange(_BINS, dtype=np.float32).reshape(1, _BINS, 1, 1), "bin_numbers")
    mean = write.node("Conv", [shares, numbers], "bin_means", kernel_shape=[1, 1], strides=[1, 1], pads=[0] * 4)
    distances = write.node("Reshape", [mean, write.integers((batch, 4, cells), "distances_shape")], "distances")
    before, after = write.split(distances, 1, ["before", "after"])
    grids = [np.stack(np.meshgrid(*[np.arange(side) + 0.5] * 2)).reshape(2, -1) for side in sides]
    centers = write.weight(np.concatenate(grids, axis=1).astype(np.float32)[None], "cell_centers")
    low = write.node("Sub", [centers, before], "low")
    high = write.node("Add", [centers, after], "high")
    middle = write.node("Div", [write.node("Add", [low, high], "both"), write.number(2.0, "two")], "middle")
    extent = write.node("Sub", [high, low], "extent")
    pixels = np.repeat(np.asarray(_STRIDES, np.float32), [side**2 for side in sides])
    joined = write.node("Concat", [middle, extent], "cell_boxes", axis=1)
    return write.node("Mul", [joined, write.weight(pixels[None], "cell_pixels")], "pixel_boxes")
