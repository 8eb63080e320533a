"""U-Net for segmentation as an ONNX model; batch normalization is not folded.

Convolutions are padded, so the mask has the size of the image. Skip connections join levels of the same size.
"""

import onnx

from benchmarks.zoo.layers import LayerWriter

# Of Ronneberger et al. (arXiv 1505.04597), whose convolutions are not padded.
_LEVELS = 4


def unet(
    *, batch: int = 1, image: int = 256, width: int = 32, colors: int = 3, classes: int = 1, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, colors, image, image), output (batch, classes, image, image) between 0 and 1; `width` is the
    number of channels of the first level, `image` a multiple of 16.
    """
    write = LayerWriter("unet", (batch, colors, image, image), seed)
    x, taken = write.input, colors
    kept: list[str] = []
    for level in range(_LEVELS):
        x = _two_convolutions(write, x, (taken, width * 2**level), f"down{level + 1}")
        kept.append(x)
        x = write.node("MaxPool", [x], f"down{level + 1}_pool", kernel_shape=[2, 2], strides=[2, 2])
        taken = width * 2**level
    x = _two_convolutions(write, x, (taken, 2 * taken), "bottom")
    for level in reversed(range(_LEVELS)):
        made, name = width * 2**level, f"up{level + 1}"
        x = write.transposed_convolution(x, (2 * made, made), 2, f"{name}_conv", stride=2, pad=0)
        x = write.node("Concat", [x, kept[level]], f"{name}_concat", axis=1)
        x = _two_convolutions(write, x, (2 * made, made), name)
    x = write.convolution(x, (width, classes), 1, "mask_conv")
    return write.finish(write.node("Sigmoid", [x], "mask"), (batch, classes, image, image))


def _two_convolutions(write: LayerWriter, x: str, channels: tuple[int, int], name: str) -> str:
    """3x3 convolution, batch norm and ReLU, twice."""
    taken, made = channels
    for part in ("a", "b"):
        x = write.convolution(x, (taken, made), 3, f"{name}_{part}_conv")
        x = write.node("Relu", [write.batch_norm(x, made, f"{name}_{part}_bn", gain=1.1)], f"{name}_{part}_relu")
        taken = made
    return x
