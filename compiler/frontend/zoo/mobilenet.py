"""MobileNet-V2 as an ONNX model: stages of inverted residuals. Batch normalization is not folded."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from retune.compiler.frontend.zoo.layers import LayerWriter, round_channels

# expansion, channels, repeats, stride of the first, kernel
# Table 2 of Sandler et al., "MobileNetV2" (arXiv 1801.04381)
_MOBILENET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)  # fmt: skip


def mobilenet_v2(
    *, batch: int = 1, image: int = 224, classes: int = 1000, width: float = 1.0, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` multiplies the number of channels. As in the
    paper.
    """
    write = LayerWriter("mobilenet_v2", (batch, 3, image, image), seed)
    for name, bound in (("six", 6.0), ("zero", 0.0)):
        write.number(bound, name)
    blocks = InvertedResiduals(write, gain=1.5, residual_gain=0.4, last_gain=1.0)
    return blocks.network(_MOBILENET, width, round_channels(1280 * max(1.0, width)), (batch, classes))


@dataclass(frozen=True)
class InvertedResiduals:
    """Writes a network of inverted residual blocks.

    The gains scale batch normalizations: `gain` those before an activation, `residual_gain` the last of a block
    whose input is added, `last_gain` the last of another block.
    """

    write: LayerWriter
    gain: float
    residual_gain: float
    last_gain: float

    def activate(self, x: str, name: str) -> str:
        """ReLU6, by the bounds that `mobilenet_v2` declares."""
        return self.write.node("Clip", [x, "zero", "six"], f"{name}_relu6")

    def weigh(self, branch: str, channels: tuple[int, int], name: str) -> str:
        """The `channels[1]` channels of `branch`, in a block of `channels[0]` inputs; subclasses may scale them."""
        del channels, name
        return branch

    def network(
        self, stages: Sequence[tuple[int, int, int, int, int]], width: float, last: int, output: tuple[int, int]
    ) -> onnx.ModelProto:
        """The stem, the stages, a layer of `last` channels, and the classifier.

        A stage is (expansion, channels, repeats, stride of the first block, kernel).
        """
        inputs = round_channels(32 * width)
        x = self.layer(self.write.input, (3, inputs), 3, "stem", stride=2)
        for stage, (expansion, channels, repeats, first_stride, kernel) in enumerate(stages):
            outputs = round_channels(channels * width)
            for block in range(repeats):
                block_shape = expansion, kernel, first_stride if block == 0 else 1
                x = self.inverted_residual(x, (inputs, outputs), block_shape, f"block{stage}_{block}")
                inputs = outputs
        return self.write.classify(self.layer(x, (inputs, last), 1, "head"), last, output)

    def layer(
        self, x: str, channels: tuple[int, int], kernel: int, name: str, *, stride: int = 1, groups: int = 1
    ) -> str:
        """Convolution, batch normalization, activation."""
        x = self.write.convolution(x, channels, kernel, f"{name}_conv", stride=stride, groups=groups)
        return self.activate(self.write.batch_norm(x, channels[1], f"{name}_bn", gain=self.gain), name)

    def inverted_residual(self, x: str, channels: tuple[int, int], block_shape: tuple[int, int, int], name: str) -> str:
        """Expand, convolve depthwise, weigh the channels, project; `block_shape` is expansion, kernel and stride.

        The input is added where shape and stride allow it.
        """
        (inputs, outputs), (expansion, kernel, stride) = channels, block_shape
        hidden = inputs * expansion
        branch = x
        if expansion != 1:
            branch = self.layer(branch, (inputs, hidden), 1, f"{name}_expand")
        branch = self.layer(branch, (hidden, hidden), kernel, f"{name}_dw", stride=stride, groups=hidden)
        branch = self.weigh(branch, (inputs, hidden), name)
        branch = self.write.convolution(branch, (hidden, outputs), 1, f"{name}_project_conv")
        residual = stride == 1 and inputs == outputs
        gain = self.residual_gain if residual else self.last_gain
        branch = self.write.batch_norm(branch, outputs, f"{name}_project_bn", gain=gain)
        return self.write.node("Add", [x, branch], f"{name}_add") if residual else branch
