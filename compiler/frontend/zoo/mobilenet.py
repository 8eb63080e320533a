"""MobileNet-V2 as an ONNX model, structured as in the paper; batch normalization is not folded."""

import numpy as np
import onnx
from numpy.typing import NDArray

from retune.compiler.frontend.zoo.layers import LayerWriter, round_channels

# expansion, channels, repeats, stride of the first
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    *, batch: int = 1, image: int = 224, classes: int = 1000, width: float = 1.0, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` multiplies the number of channels."""
    write = LayerWriter("mobilenet_v2", (batch, 3, image, image), seed)
    six = write.weight(_scalar(6.0), "six")
    zero = write.weight(_scalar(0.0), "zero")
    taken = round_channels(32 * width)
    x = _conv_bn_relu6(write, write.input, (3, taken), 3, "stem", (zero, six), stride=2)
    for stage, (expansion, channels, repeats, first_stride) in enumerate(_STAGES):
        made = round_channels(channels * width)
        for block in range(repeats):
            stride = first_stride if block == 0 else 1
            x = _inverted_residual(write, x, (taken, made), expansion, stride, f"block{stage}_{block}", (zero, six))
            taken = made
    last = round_channels(1280 * max(1.0, width))
    x = _conv_bn_relu6(write, x, (taken, last), 1, "head", (zero, six))
    x = write.node("GlobalAveragePool", [x], "pool")
    x = write.node("Flatten", [x], "features", axis=1)
    return write.finish(write.fully_connected(x, (last, classes), "logits"), (batch, classes))


def _scalar(number: float) -> NDArray[np.float32]:
    return np.asarray(number, dtype=np.float32)


def _conv_bn_relu6(
    write: LayerWriter,
    x: str,
    channels: tuple[int, int],
    kernel: int,
    name: str,
    bounds: tuple[str, str],
    *,
    stride: int = 1,
    groups: int = 1,
) -> str:
    x = write.convolution(x, channels, kernel, f"{name}_conv", stride=stride, groups=groups)
    x = write.batch_norm(x, channels[1], f"{name}_bn", gain=1.5)
    return write.node("Clip", [x, *bounds], f"{name}_relu6")


def _inverted_residual(
    write: LayerWriter,
    x: str,
    channels: tuple[int, int],
    expansion: int,
    stride: int,
    name: str,
    bounds: tuple[str, str],
) -> str:
    """Expand, convolve depthwise, project; the input is added where shape and stride allow it."""
    taken, made = channels
    hidden = taken * expansion
    branch = x
    if expansion != 1:
        branch = _conv_bn_relu6(write, branch, (taken, hidden), 1, f"{name}_expand", bounds)
    branch = _conv_bn_relu6(write, branch, (hidden, hidden), 3, f"{name}_dw", bounds, stride=stride, groups=hidden)
    branch = write.convolution(branch, (hidden, made), 1, f"{name}_project_conv")
    residual = stride == 1 and taken == made
    branch = write.batch_norm(branch, made, f"{name}_project_bn", gain=0.4 if residual else 1.0)
    return write.node("Add", [x, branch], f"{name}_add") if residual else branch
