"""ResNet-18 and ResNet-50 as ONNX models; batch normalization is not folded.

A bottleneck's stride is on its 3x3 convolution, as in all implementations in use.
"""

from collections.abc import Callable

import onnx

from retune.compiler.frontend.zoo.layers import LayerWriter

Block = Callable[[LayerWriter, str, tuple[int, int], int, str], str]
"""Takes a writer, a value, its and the stage's channels, the stride and a name; returns the block's result."""

# Table 1 of He et al., "Deep Residual Learning" (arXiv 1512.03385).
BLOCKS_18 = (2, 2, 2, 2)
_BLOCKS_50 = (3, 4, 6, 3)
_EXPANSION = 4


def resnet18(
    *, batch: int = 1, image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` is the number of channels of the first stage."""
    write = LayerWriter("resnet18", (batch, 3, image, image), seed)
    return stages(write, _stem(write, width), BLOCKS_18, basic_block, 1, (batch, classes), width)


def resnet50(
    *, batch: int | str = 1, image: int | str = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` is the number of channels inside the blocks of
    the first stage. A symbol in place of a number leaves the batch or the side of the images to the caller.
    """
    write = LayerWriter("resnet50", (batch, 3, image, image), seed)
    return stages(write, _stem(write, width), _BLOCKS_50, _bottleneck, _EXPANSION, (batch, classes), width)


def _stem(write: LayerWriter, width: int) -> str:
    x = conv_bn(write, write.input, (3, width), 7, "stem", stride=2)
    x = write.node("Relu", [x], "stem_relu")
    return write.node("MaxPool", [x], "stem_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


def stages(
    write: LayerWriter,
    x: str,
    blocks: tuple[int, ...],
    block: Block,
    expansion: int,
    output: tuple[int | str, int],
    width: int,
) -> onnx.ModelProto:
    """What follows the stem: stages of `blocks` blocks with twice the channels each, and the classifier."""
    inputs = width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            x = block(write, x, (inputs, inner), stride, f"layer{stage + 1}_{number}")
            inputs = inner * expansion
    return write.classify(x, inputs, output)


def conv_bn(
    write: LayerWriter,
    x: str,
    channels: tuple[int, int],
    kernel: int | tuple[int, ...],
    name: str,
    *,
    stride: int | tuple[int, ...] = 1,
    gain: float = 1.0,
) -> str:
    x = write.convolution(x, channels, kernel, f"{name}_conv", stride=stride)
    return write.batch_norm(x, channels[1], f"{name}_bn", gain=gain)


def basic_block(write: LayerWriter, x: str, channels: tuple[int, int], stride: int, name: str) -> str:
    """Two convolutions of extent 3 and the shortcut; the branch's gain keeps the sum of the two near unit variance."""
    inputs, outputs = channels
    branch = conv_bn(write, x, channels, 3, f"{name}_a", stride=stride)
    branch = write.node("Relu", [branch], f"{name}_a_relu")
    branch = conv_bn(write, branch, (outputs, outputs), 3, f"{name}_b", gain=0.5)
    shortcut = x if inputs == outputs else conv_bn(write, x, channels, 1, f"{name}_down", stride=stride)
    return write.node("Relu", [write.node("Add", [branch, shortcut], f"{name}_add")], f"{name}_relu")


def _bottleneck(write: LayerWriter, x: str, channels: tuple[int, int], stride: int, name: str) -> str:
    """1x1 down to the stage's channels, 3x3, 1x1 up to four times as many, and the shortcut."""
    inputs, inner = channels
    outputs = inner * _EXPANSION
    branch = conv_bn(write, x, (inputs, inner), 1, f"{name}_a")
    branch = write.node("Relu", [branch], f"{name}_a_relu")
    branch = conv_bn(write, branch, (inner, inner), 3, f"{name}_b", stride=stride)
    branch = write.node("Relu", [branch], f"{name}_b_relu")
    branch = conv_bn(write, branch, (inner, outputs), 1, f"{name}_c", gain=0.5)
    shortcut = x if inputs == outputs else conv_bn(write, x, (inputs, outputs), 1, f"{name}_down", stride=stride)
    return write.node("Relu", [write.node("Add", [branch, shortcut], f"{name}_add")], f"{name}_relu")
