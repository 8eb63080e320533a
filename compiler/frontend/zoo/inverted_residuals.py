"""MobileNet-V2 and EfficientNet as ONNX models: stages of inverted residuals. Batch normalization is not folded."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from retune.compiler.frontend.zoo.layers import LayerWriter, round_channels

# expansion, channels, repeats, stride of the first, kernel
# Table 2 of Sandler et al., "MobileNetV2" (arXiv 1801.04381)
_MOBILENET = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 32, 3, 2, 3),
    (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)
# Table 1 of Tan and Le, with the same columns
_EFFICIENTNET = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def mobilenet_v2(
    *, batch: int = 1, image: int = 224, classes: int = 1000, width: float = 1.0, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` multiplies the number of channels. As in the
    paper.
    """
    write = LayerWriter("mobilenet_v2", (batch, 3, image, image), seed)
    six, zero = write.number(6.0, "six"), write.number(0.0, "zero")
    blocks = _Blocks(write, bounds=(zero, six), gain=1.5, residual_gain=0.4, last_gain=1.0)
    return blocks.network(_MOBILENET, width, round_channels(1280 * max(1.0, width)), (batch, classes))


def efficientnet_b0(
    *, batch: int = 1, image: int = 224, classes: int = 1000, width: float = 1.0, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` multiplies the number of channels.

    Configuration B0 of Tan and Le, "EfficientNet" (arXiv 1905.11946).
    """
    write = LayerWriter("efficientnet_b0", (batch, 3, image, image), seed)
    blocks = _Blocks(write, bounds=None, gain=1.18, residual_gain=0.5, last_gain=1.2)
    return blocks.network(_EFFICIENTNET, width, round_channels(1280 * width), (batch, classes))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Writes the layers of one network. They activate by clipping to `bounds`, or without these by SiLU, and then weigh
    their channels too. The gains are those of batch normalization: after an activated layer's convolution, at the end
    of a block whose input is added, and at the end of another block.
    """

    write: LayerWriter
    bounds: tuple[str, str] | None
    gain: float
    residual_gain: float
    last_gain: float

    def network(
        self, stages: Sequence[tuple[int, int, int, int, int]], width: float, last: int, output: tuple[int, int]
    ) -> onnx.ModelProto:
        """The stem, the stages, a layer of `last` channels, and the classifier."""
        taken = round_channels(32 * width)
        x = self.layer(self.write.input, (3, taken), 3, "stem", stride=2)
        for stage, (expansion, channels, repeats, first_stride, kernel) in enumerate(stages):
            made = round_channels(channels * width)
            for block in range(repeats):
                form = expansion, kernel, first_stride if block == 0 else 1
                x = self.inverted_residual(x, (taken, made), form, f"block{stage}_{block}")
                taken = made
        return self.write.classify(self.layer(x, (taken, last), 1, "head"), last, output)

    def layer(
        self, x: str, channels: tuple[int, int], kernel: int, name: str, *, stride: int = 1, groups: int = 1
    ) -> str:
        """Convolution, batch normalization, activation."""
        x = self.write.convolution(x, channels, kernel, f"{name}_conv", stride=stride, groups=groups)
        x = self.write.batch_norm(x, channels[1], f"{name}_bn", gain=self.gain)
        if self.bounds is None:
            return self.write.silu(x, f"{name}_silu")
        return self.write.node("Clip", [x, *self.bounds], f"{name}_relu6")

    def inverted_residual(self, x: str, channels: tuple[int, int], form: tuple[int, int, int], name: str) -> str:
        """Expand, convolve depthwise, weigh the channels, project; `form` is expansion, kernel and stride.

        The input is added where shape and stride allow it.
        """
        (taken, made), (expansion, kernel, stride) = channels, form
        hidden = taken * expansion
        branch = x
        if expansion != 1:
            branch = self.layer(branch, (taken, hidden), 1, f"{name}_expand")
        branch = self.layer(branch, (hidden, hidden), kernel, f"{name}_dw", stride=stride, groups=hidden)
        if self.bounds is None:
            # A quarter of the block's input, not of its expanded channels, as in the reference implementation.
            branch = _squeeze_excite(self.write, branch, (hidden, max(1, taken // 4)), f"{name}_se")
        branch = self.write.convolution(branch, (hidden, made), 1, f"{name}_project_conv")
        residual = stride == 1 and taken == made
        gain = self.residual_gain if residual else self.last_gain
        branch = self.write.batch_norm(branch, made, f"{name}_project_bn", gain=gain)
        return self.write.node("Add", [x, branch], f"{name}_add") if residual else branch


def _squeeze_excite(write: LayerWriter, x: str, channels: tuple[int, int], name: str) -> str:
    """Every channel times a factor that two small layers compute of the means of all; `channels` is (all, few)."""
    means = write.node("GlobalAveragePool", [x], f"{name}_means")
    few = write.silu(write.convolution(means, channels, 1, f"{name}_squeeze", bias=True), f"{name}_silu")
    every = write.convolution(few, channels[::-1], 1, f"{name}_excite", bias=True)
    return write.node("Mul", [x, write.node("Sigmoid", [every], f"{name}_factors")], f"{name}_scaled")
