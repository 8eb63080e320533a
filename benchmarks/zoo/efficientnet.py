"""EfficientNet-B0 as an ONNX model: inverted residuals with SiLU that weigh their channels.

Batch normalization is not folded.
"""

from dataclasses import dataclass

import onnx

from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.layers import round_channels
from retune.compiler.frontend.zoo.mobilenet import InvertedResiduals

# expansion, channels, repeats, stride of the first, kernel
# Table 1 of Tan and Le, "EfficientNet" (arXiv 1905.11946)
_EFFICIENTNET = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet_b0(
    *, batch: int = 1, image: int = 224, classes: int = 1000, width: float = 1.0, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` multiplies the number of channels."""
    write = LayerWriter("efficientnet_b0", (batch, 3, image, image), seed)
    blocks = _Blocks(write, gain=1.18, residual_gain=0.5, last_gain=1.2)
    return blocks.network(_EFFICIENTNET, width, round_channels(1280 * width), (batch, classes))


@dataclass(frozen=True)
class _Blocks(InvertedResiduals):
    """Blocks with SiLU, and with a factor for every channel that two small layers compute of the means of all."""

    write: LayerWriter

    def activate(self, x: str, name: str) -> str:
        return self.write.silu(x, f"{name}_silu")

    def weigh(self, branch: str, channels: tuple[int, int], name: str) -> str:
        taken, hidden = channels
        # A quarter of the block's input, not of its expanded channels, as in the reference implementation.
        few = max(1, taken // 4)
        means = self.write.node("GlobalAveragePool", [branch], f"{name}_se_means")
        squeezed = self.write.shifted_convolution(means, (hidden, few), 1, f"{name}_se_squeeze")
        activated = self.write.silu(squeezed, f"{name}_se_silu")
        excited = self.write.shifted_convolution(activated, (few, hidden), 1, f"{name}_se_excite")
        factors = self.write.node("Sigmoid", [excited], f"{name}_se_factors")
        return self.write.node("Mul", [branch, factors], f"{name}_se_scaled")
