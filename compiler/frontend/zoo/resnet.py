"""In: image size, width and batch. Out: ResNet-18 as ONNX. Always: as in the paper, batch norms not folded."""

import onnx

from compiler.frontend.zoo.layers import LayerWriter


def resnet18(
    *, batch: int = 1, image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output (batch, classes); `width` is the number of channels of the first stage."""
    write = LayerWriter("resnet18", (batch, 3, image, image), seed)
    x = _conv_bn(write, write.input, (3, width), 7, "stem", stride=2)
    x = write.node("Relu", [x], "stem_relu")
    x = write.node("MaxPool", [x], "stem_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    taken = width
    for stage in range(4):
        made = width * 2**stage
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _basic_block(write, x, (taken, made), stride, f"layer{stage + 1}_{block}")
            taken = made
    x = write.node("GlobalAveragePool", [x], "pool")
    x = write.node("Flatten", [x], "features", axis=1)
    return write.finish(write.fully_connected(x, (taken, classes), "logits"), (batch, classes))


def _conv_bn(
    write: LayerWriter,
    x: str,
    channels: tuple[int, int],
    kernel: int,
    name: str,
    *,
    stride: int = 1,
    gain: float = 1.0,
) -> str:
    x = write.convolution(x, channels, kernel, f"{name}_conv", stride=stride)
    return write.batch_norm(x, channels[1], f"{name}_bn", gain=gain)


def _basic_block(write: LayerWriter, x: str, channels: tuple[int, int], stride: int, name: str) -> str:
    """Two 3x3 convolutions and the shortcut; the branch's gain keeps the sum of the two near unit variance."""
    taken, made = channels
    branch = _conv_bn(write, x, channels, 3, f"{name}_a", stride=stride)
    branch = write.node("Relu", [branch], f"{name}_a_relu")
    branch = _conv_bn(write, branch, (made, made), 3, f"{name}_b", gain=0.5)
    shortcut = x if taken == made else _conv_bn(write, x, channels, 1, f"{name}_down", stride=stride)
    return write.node("Relu", [write.node("Add", [branch, shortcut], f"{name}_add")], f"{name}_relu")
