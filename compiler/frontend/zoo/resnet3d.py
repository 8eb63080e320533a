"""3D-ResNet-18 for video as an ONNX model; batch normalization is not folded.

All convolutions are over time, rows and columns. The stem keeps the number of frames; later stages halve all three.
"""

import onnx

from retune.compiler.frontend.zoo.layers import LayerWriter

_BLOCKS = (2, 2, 2, 2)
_STEM_KERNEL, _STEM_STRIDE = (3, 7, 7), (1, 2, 2)
_KERNEL, _POINT = (3, 3, 3), (1, 1, 1)


def r3d_18(
    *, batch: int = 1, frames: int = 16, image: int = 112, classes: int = 400, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, frames, image, image), output (batch, classes); `width` is the number of channels of the first
    stage.
    """
    write = LayerWriter("r3d_18", (batch, 3, frames, image, image), seed)
    x = write.convolution(write.input, (3, width), _STEM_KERNEL, "stem_conv", stride=_STEM_STRIDE)
    x = write.node("Relu", [write.batch_norm(x, width, "stem_bn")], "stem_relu")
    taken = width
    for stage, count in enumerate(_BLOCKS):
        made = width * 2**stage
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            x = _block(write, x, (taken, made), stride, f"layer{stage + 1}_{number}")
            taken = made
    x = write.node("GlobalAveragePool", [x], "pool")
    x = write.node("Flatten", [x], "features", axis=1)
    return write.finish(write.fully_connected(x, (taken, classes), "logits"), (batch, classes))


def _block(write: LayerWriter, x: str, channels: tuple[int, int], stride: int, name: str) -> str:
    """Two 3x3x3 convolutions and the shortcut; the branch's gain keeps the sum of the two near unit variance."""
    taken, made = channels
    branch = write.convolution(x, channels, _KERNEL, f"{name}_a_conv", stride=stride)
    branch = write.node("Relu", [write.batch_norm(branch, made, f"{name}_a_bn")], f"{name}_a_relu")
    branch = write.convolution(branch, (made, made), _KERNEL, f"{name}_b_conv")
    branch = write.batch_norm(branch, made, f"{name}_b_bn", gain=0.5)
    if taken != made:
        x = write.convolution(x, channels, _POINT, f"{name}_down_conv", stride=stride)
        x = write.batch_norm(x, made, f"{name}_down_bn")
    return write.node("Relu", [write.node("Add", [branch, x], f"{name}_add")], f"{name}_relu")
