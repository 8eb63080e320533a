"""Swin, a vision transformer with attention inside windows that shift from layer to layer, as an ONNX model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.zoo.attention import feed_forward, hidden_where, image_to_windows, windows_to_image
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import Sizes, gelu, join_heads, split_heads, weighted_values


@dataclass(frozen=True, slots=True)
class _Stage:
    """Sizes of the layers of a stage: `side` of the image of tokens, `window` that of a window."""

    batch: int
    side: int
    window: int
    width: int
    heads: int

    @property
    def windows(self) -> int:
        """The number of windows in an image."""
        return (self.side // self.window) ** 2

    @property
    def apart(self) -> tuple[int, ...]:
        """The shape whose dimensions 2 and 3 change places to give windows."""
        along = self.side // self.window
        return self.batch, along, self.window, along, self.window, self.width


def swin_tiny(
    *,
    batch: int = 1,
    image: int = 224,
    window: int = 7,
    layers: Sequence[int] = (2, 2, 6, 2),
    width: int = 96,
    heads: int = 3,
    classes: int = 1000,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes).

    Configuration T of Liu et al., "Swin Transformer" (arXiv 2103.14030). `layers` is that of each stage, `width` and
    `heads` those of the first, doubled by each that follows; `image` is a multiple of 32 windows' sides.
    """
    write = LayerWriter("swin_tiny", (batch, 3, image, image), seed)
    x = write.shifted_convolution(write.input, (3, width), 4, "patch", stride=4, pad=0)
    x = write.node("Transpose", [x], "patch_last", perm=[0, 2, 3, 1])
    x = write.layer_norm(x, width, "patch_norm")
    stage = _Stage(batch, image // 4, window, width, heads)
    for number, count in enumerate(layers):
        if number:
            x = _merge(write, x, stage, f"stage{number}_merge")
            stage = _Stage(batch, stage.side // 2, window, 2 * stage.width, 2 * stage.heads)
        for layer in range(count):
            shift = window // 2 if layer % 2 and stage.side > window else 0
            x = _layer(write, x, stage, shift, f"stage{number}_layer{layer}")
    x = write.layer_norm(x, stage.width, "norm")
    x = write.node("ReduceMean", [x], "features", axes=[1, 2], keepdims=0)
    return write.finish(write.fully_connected(x, (stage.width, classes), "logits"), (batch, classes))


def _layer(write: LayerWriter, x: str, stage: _Stage, shift: int, name: str) -> str:
    """Attention in windows, then the feed-forward part; each is added to what it got."""
    width, tokens = stage.width, stage.window**2
    sizes = Sizes(stage.batch * stage.windows, tokens, width, stage.heads, 4 * width)
    normal = write.layer_norm(x, width, f"{name}_norm1")
    if shift:
        normal = _roll(write, normal, shift, stage.side, f"{name}_shifted")
    rows = image_to_windows(write, normal, stage.apart, name)
    names = [f"{name}_{part}" for part in ("query", "key", "value")]
    parts = write.split(write.linear(rows, (width, 3 * width), f"{name}_qkv"), 2, names)
    query, key, value = (split_heads(write, part, sizes, part) for part in parts)
    mask = _offsets(write, stage, f"{name}_offsets")
    if shift:
        mask = write.node("Add", [mask, _region_mask(write, stage, shift)], f"{name}_mask")
    mixed = weighted_values(write, query, key, value, sizes.head_width, f"{name}_attention", mask=mask)
    joined = join_heads(write, mixed, sizes, f"{name}_attention")
    attended = write.linear(joined, (width, width), f"{name}_projection")
    made = windows_to_image(write, attended, stage.apart, name)
    if shift:
        made = _roll(write, made, stage.side - shift, stage.side, f"{name}_back")
    x = write.node("Add", [x, made], f"{name}_attended")
    normal = write.layer_norm(x, width, f"{name}_norm2")
    return write.node("Add", [x, feed_forward(write, normal, sizes, name, gelu)], f"{name}_out")


def _roll(write: LayerWriter, x: str, shift: int, side: int, name: str) -> str:
    """The image moved up and to the left; what leaves it comes back at the other end."""
    for axis, axis_name in ((1, "rows"), (2, "columns")):
        middle, end = (write.integers((bound,), f"{name}_{axis_name}_{bound}") for bound in (shift, side))
        parts = [
            write.node("Slice", [x, *bounds], f"{name}_{axis_name}_{part}")
            for part, bounds in (
                ("later", (middle, end, write.integers((axis,), f"{axis_name}_axis"))),
                ("earlier", write.part(0, middle, axis, f"{name}_{axis_name}_first")),
            )
        ]
        x = write.node("Concat", parts, f"{name}_{axis_name}", axis=axis)
    return x


def _offsets(write: LayerWriter, stage: _Stage, name: str) -> str:
    """What the places of two tokens relative to each other add to their score: (1, heads, tokens, tokens)."""
    window, tokens = stage.window, stage.window**2
    table = write.normal(((2 * window - 1) ** 2, stage.heads), 0.3, f"{name}_table")
    rows, columns = np.divmod(np.arange(tokens), window)
    apart = [part[:, None] - part[None, :] + window - 1 for part in (rows, columns)]
    index = write.integers((apart[0] * (2 * window - 1) + apart[1]).ravel(), f"offsets{window}")
    found = write.node("Gather", [table, index], f"{name}_rows", axis=0)
    shape = write.integers((1, tokens, tokens, stage.heads), f"{name}_shape")
    return write.node("Transpose", [write.node("Reshape", [found, shape], f"{name}_pairs")], name, perm=[0, 3, 1, 2])


def _region_mask(write: LayerWriter, stage: _Stage, shift: int) -> str:
    """What hides tokens that only the shift has made neighbors: (windows of the batch, 1, tokens, tokens)."""
    bands = np.repeat((0, 1, 2), (stage.side - stage.window, stage.window - shift, shift))
    _, along, window, *_ = stage.apart
    regions = (3 * bands[:, None] + bands[None, :]).reshape(along, window, along, window).transpose(0, 2, 1, 3)
    rows = np.tile(regions.reshape(stage.windows, window**2), (stage.batch, 1))
    return hidden_where(write, (rows[:, :, None] != rows[:, None, :])[:, None], f"shifted{stage.side}_mask")


def _merge(write: LayerWriter, x: str, stage: _Stage, name: str) -> str:
    """Two by two neighbors as one token of twice the width."""
    side, width = stage.side, stage.width
    axes, steps, end = (
        write.integers(values, key)
        for key, values in (("merge_axes", (1, 2)), ("merge_steps", (2, 2)), (f"merge_end{side}", (side, side)))
    )
    parts = [
        write.node(
            "Slice", [x, write.integers(start, f"merge_{start[0]}{start[1]}"), end, axes, steps], f"{name}_{part}"
        )
        for part, start in enumerate(((0, 0), (1, 0), (0, 1), (1, 1)))
    ]
    normal = write.layer_norm(write.node("Concat", parts, f"{name}_parts", axis=-1), 4 * width, f"{name}_norm")
    return write.linear(normal, (4 * width, 2 * width), name, bias=False)
