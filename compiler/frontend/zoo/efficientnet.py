"""EfficientNet as an ONNX model: inverted residuals with squeeze and excitation; batch normalization is not folded."""

import onnx

from retune.compiler.frontend.zoo.layers import LayerWriter, round_channels

# expansion, channels, repeats, stride of the first, kernel
_STAGES = (
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
    """Input (batch, 3, image, image), output (batch, classes); `width` multiplies the number of channels.

    Configuration B0 of Tan and Le, "EfficientNet" (arXiv 1905.11946).
    """
    write = LayerWriter("efficientnet_b0", (batch, 3, image, image), seed)
    taken = round_channels(32 * width)
    x = _conv_bn_silu(write, write.input, (3, taken), 3, "stem", stride=2)
    for stage, (expansion, channels, repeats, first_stride, kernel) in enumerate(_STAGES):
        made = round_channels(channels * width)
        for block in range(repeats):
            stride = first_stride if block == 0 else 1
            x = _inverted_residual(write, x, (taken, made), (expansion, kernel, stride), f"block{stage}_{block}")
            taken = made
    last = round_channels(1280 * width)
    x = _conv_bn_silu(write, x, (taken, last), 1, "head")
    x = write.node("Flatten", [write.node("GlobalAveragePool", [x], "pool")], "features", axis=1)
    return write.finish(write.fully_connected(x, (last, classes), "logits"), (batch, classes))


def _conv_bn_silu(
    write: LayerWriter, x: str, channels: tuple[int, int], kernel: int, name: str, *, stride: int = 1, groups: int = 1
) -> str:
    x = write.convolution(x, channels, kernel, f"{name}_conv", stride=stride, groups=groups)
    return write.silu(write.batch_norm(x, channels[1], f"{name}_bn", gain=1.18), f"{name}_silu")


def _inverted_residual(
    write: LayerWriter, x: str, channels: tuple[int, int], form: tuple[int, int, int], name: str
) -> str:
    """Expand, convolve depthwise, weigh the channels, project; `form` is expansion, kernel and stride.

    The input is added where shape and stride allow it.
    """
    (taken, made), (expansion, kernel, stride) = channels, form
    hidden = taken * expansion
    branch = x
    if expansion != 1:
        branch = _conv_bn_silu(write, branch, (taken, hidden), 1, f"{name}_expand")
    branch = _conv_bn_silu(write, branch, (hidden, hidden), kernel, f"{name}_dw", stride=stride, groups=hidden)
    branch = _squeeze_excite(write, branch, (hidden, max(1, taken // 4)), f"{name}_se")
    branch = write.convolution(branch, (hidden, made), 1, f"{name}_project_conv")
    residual = stride == 1 and taken == made
    branch = write.batch_norm(branch, made, f"{name}_project_bn", gain=0.5 if residual else 1.2)
    return write.node("Add", [x, branch], f"{name}_add") if residual else branch


def _squeeze_excite(write: LayerWriter, x: str, channels: tuple[int, int], name: str) -> str:
    """Every channel times a factor that two small layers compute of the means of all; `channels` is (all, few)."""
    means = write.node("GlobalAveragePool", [x], f"{name}_means")
    few = write.silu(write.convolution(means, channels, 1, f"{name}_squeeze", bias=True), f"{name}_silu")
    every = write.convolution(few, channels[::-1], 1, f"{name}_excite", bias=True)
    return write.node("Mul", [x, write.node("Sigmoid", [every], f"{name}_factors")], f"{name}_scaled")
