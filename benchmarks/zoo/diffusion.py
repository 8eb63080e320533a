"""The U-Net of a denoising diffusion model as an ONNX model: residual blocks that the time shifts, and attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.zoo.attention import image_to_tokens, tokens_to_image
from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import Sizes, join_heads, split_heads, weighted_values

_EPSILON = 1e-6
_GROUPS = 32


def ddpm_unet(
    *,
    batch: int = 1,
    image: int = 32,
    width: int = 128,
    multiples: Sequence[int] = (1, 2, 2, 2),
    layers: int = 2,
    attention: int = 16,
    colors: int = 3,
    seed: int = 0,
) -> onnx.ModelProto:
    """Inputs `sample` (batch, colors, image, image) and `timestep`, int64 (batch); output `noise`, of the same shape.

    Configuration for CIFAR-10 of Ho et al., "Denoising Diffusion Probabilistic Models" (arXiv 2006.11239). `multiples`
    of `width` are the channels of each level, `layers` that of a level on the way down; on the way up there is one
    more. Images of the size `attention` and those in the middle attend to themselves.
    """
    write = LayerWriter("ddpm_unet", None, seed)
    sample = write.feed("sample", (batch, colors, image, image))
    time = write.feed("timestep", (batch,), TensorProto.INT64)
    blocks = _Blocks(write, batch, _time(write, time, width), 4 * width, attention)
    x, taken, side = write.shifted_convolution(sample, (colors, width), 3, "conv_in"), width, image
    kept = [(x, width)]
    for level, multiple in enumerate(multiples):
        made = multiple * width
        for layer in range(layers):
            x = blocks.layer(x, (taken, made), side, f"down{level}_{layer}")
            taken = made
            kept.append((x, taken))
        if level < len(multiples) - 1:
            # padded at the ends alone, as the original
            x = write.node("Pad", [x, write.integers((0, 0, 0, 0, 0, 0, 1, 1), "end_pads")], f"down{level}_padded")
            x = write.shifted_convolution(x, (taken, taken), 3, f"down{level}_shrink", stride=2, pad=0)
            side //= 2
            kept.append((x, taken))
    x = blocks.residual(x, (taken, taken), side, "middle_a")
    x = blocks.attend(x, taken, side, "middle_attention")
    x = blocks.residual(x, (taken, taken), side, "middle_b")
    for level, multiple in reversed(list(enumerate(multiples))):
        made = multiple * width
        for layer in range(layers + 1):
            skipped, more = kept.pop()
            name = f"up{level}_{layer}"
            x = write.node("Concat", [x, skipped], f"{name}_joined", axis=1)
            x = blocks.layer(x, (taken + more, made), side, name)
            taken = made
        if level:
            scales = write.weight(np.asarray((1, 1, 2, 2), np.float32), "upscale")
            attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            x = write.node("Resize", [x, "", scales], f"up{level}_large", **attributes)
            x = write.shifted_convolution(x, (taken, taken), 3, f"up{level}_conv", gain=0.7)
            side *= 2
    x = write.silu(blocks.norm(x, taken, side, "norm_out"), "silu_out")
    return write.finish(write.shifted_convolution(x, (taken, colors), 3, "noise"), (batch, colors, image, image))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Writes the blocks of one network; `time` is the vector of the time, of extent `time_width`."""

    write: LayerWriter
    batch: int
    time: str
    time_width: int
    attention: int

    def norm(self, x: str, channels: int, side: int, name: str) -> str:
        """Group normalization of an image."""
        groups = min(_GROUPS, channels // 2)
        return self.write.group_norm(x, (self.batch, channels, side, side), groups, name, epsilon=_EPSILON)

    def layer(self, x: str, channels: tuple[int, int], side: int, name: str) -> str:
        """A residual block and, in images of the right size, attention."""
        x = self.residual(x, channels, side, name)
        return self.attend(x, channels[1], side, f"{name}_attention") if side == self.attention else x

    def residual(self, x: str, channels: tuple[int, int], side: int, name: str) -> str:
        """Two convolutions, between which a vector made of the time is added to every pixel; the input is added."""
        taken, made = channels
        write = self.write
        inner = write.silu(self.norm(x, taken, side, f"{name}_norm1"), f"{name}_silu1")
        inner = write.shifted_convolution(inner, (taken, made), 3, f"{name}_conv1")
        shift = write.silu(self.time, f"{name}_time_silu")
        shift = write.fully_connected(shift, (self.time_width, made), f"{name}_time")
        wide = write.node("Unsqueeze", [shift, write.integers((2, 3), "pixel_axes")], f"{name}_time_wide")
        inner = write.node("Add", [inner, wide], f"{name}_timed")
        inner = write.silu(self.norm(inner, made, side, f"{name}_norm2"), f"{name}_silu2")
        inner = write.shifted_convolution(inner, (made, made), 3, f"{name}_conv2", gain=0.7)
        if taken != made:
            x = write.shifted_convolution(x, (taken, made), 1, f"{name}_shortcut", gain=0.7)
        return write.node("Add", [x, inner], f"{name}_out")

    def attend(self, x: str, channels: int, side: int, name: str) -> str:
        """Attention of all pixels to each other by one head, added to the image."""
        write, tokens = self.write, side * side
        sizes, square = Sizes(self.batch, tokens, channels, 1, 0), (channels, channels)
        normal = self.norm(x, channels, side, f"{name}_norm")
        rows = image_to_tokens(write, normal, (self.batch, tokens, channels), name)
        query, key, value = (
            split_heads(write, write.linear(rows, square, f"{name}_{part}"), sizes, f"{name}_{part}")
            for part in ("query", "key", "value")
        )
        mixed = join_heads(write, weighted_values(write, query, key, value, channels, name), sizes, name)
        made = write.linear(mixed, square, f"{name}_projection")
        picture = tokens_to_image(write, made, (self.batch, channels, side, side), f"{name}_out")
        return write.node("Add", [picture, x], f"{name}_sum")


def _time(write: LayerWriter, time: str, width: int) -> str:
    """Sines and cosines of the time at rates from 1 to 1/10000, and two layers of them: (batch, 4 · width)."""
    rates = np.exp(-np.log(10000) / (width // 2 - 1) * np.arange(width // 2)).astype(np.float32)
    real = write.node("Cast", [time], "time_float", to=TensorProto.FLOAT)
    column = write.node("Unsqueeze", [real, write.integers((1,), "rates_axis")], "time_column")
    angles = write.node("Mul", [column, write.weight(rates[None], "rates")], "time_angles")
    waves = [write.node(op, [angles], f"time_{op.lower()}") for op in ("Sin", "Cos")]
    x = write.node("Concat", waves, "time_waves", axis=1)
    x = write.silu(write.fully_connected(x, (width, 4 * width), "time1"), "time_silu")
    return write.fully_connected(x, (4 * width, 4 * width), "time2")
