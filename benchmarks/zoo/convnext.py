"""ConvNeXt as an ONNX model: depthwise convolutions between layer normalizations of the channels."""

from collections.abc import Sequence

import onnx

from benchmarks.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.attention import gelu

_EPSILON = 1e-6


def convnext_tiny(
    *,
    batch: int = 1,
    image: int = 224,
    layers: Sequence[int] = (3, 3, 9, 3),
    width: int = 96,
    classes: int = 1000,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes).

    Configuration T of Liu et al., "A ConvNet for the 2020s" (arXiv 2201.03545). `layers` is that of each stage,
    `width` that of the first, doubled by each that follows.
    """
    write = LayerWriter("convnext_tiny", (batch, 3, image, image), seed)
    x = write.shifted_convolution(write.input, (3, width), 4, "stem", stride=4, pad=0)
    x = _channel_norm(write, x, width, "stem_norm")
    for stage, count in enumerate(layers):
        if stage:
            x = _channel_norm(write, x, width, f"stage{stage}_norm")
            x = write.shifted_convolution(x, (width, 2 * width), 2, f"stage{stage}_shrink", stride=2, pad=0)
            width *= 2
        for layer in range(count):
            x = _block(write, x, width, f"stage{stage}_block{layer}")
    x = write.node("Flatten", [write.node("GlobalAveragePool", [x], "pool")], "pooled", axis=1)
    x = write.layer_norm(x, width, "norm", epsilon=_EPSILON)
    return write.finish(write.fully_connected(x, (width, classes), "logits"), (batch, classes))


def _channels_last(write: LayerWriter, x: str, name: str) -> str:
    return write.node("Transpose", [x], f"{name}_last", perm=[0, 2, 3, 1])


def _channels_first(write: LayerWriter, x: str, name: str) -> str:
    return write.node("Transpose", [x], f"{name}_first", perm=[0, 3, 1, 2])


def _channel_norm(write: LayerWriter, x: str, width: int, name: str) -> str:
    """Layer normalization over the channels of (batch, width, height, width of the image)."""
    normal = write.layer_norm(_channels_last(write, x, name), width, name, epsilon=_EPSILON)
    return _channels_first(write, normal, name)


def _block(write: LayerWriter, x: str, width: int, name: str) -> str:
    """Convolve depthwise, then expand and project each pixel; the input is added."""
    branch = write.shifted_convolution(x, (width, width), 7, f"{name}_dw", groups=width)
    branch = write.layer_norm(_channels_last(write, branch, name), width, f"{name}_norm", epsilon=_EPSILON)
    branch = gelu(write, write.linear(branch, (width, 4 * width), f"{name}_up"), f"{name}_gelu")
    branch = write.linear(branch, (4 * width, width), f"{name}_down")
    # Training begins with 1e-6, which would hide an error of the whole branch from a comparison of results.
    scale = write.normal((width,), 0.5, f"{name}_layer_scale")
    branch = write.node("Mul", [branch, scale], f"{name}_scaled")
    return write.node("Add", [x, _channels_first(write, branch, name)], f"{name}_out")
