"""3D-ResNet-18 for video as an ONNX model; batch normalization is not folded."""

import onnx

from retune.compiler.frontend.zoo.layers import LayerWriter
from retune.compiler.frontend.zoo.resnet import BLOCKS_18, basic_block, conv_bn, stages


def r3d_18(
    *, batch: int = 1, frames: int = 16, image: int = 112, classes: int = 400, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 3, frames, image, image), output (batch, classes); `width` is the number of channels of the first
    stage. All convolutions are over time, rows and columns; the stem keeps the number of frames, later stages halve it.
    """
    write = LayerWriter("r3d_18", (batch, 3, frames, image, image), seed)
    # The stem of R3D in Tran et al. (arXiv 1711.11248), without a pool.
    x = conv_bn(write, write.input, (3, width), (3, 7, 7), "stem", stride=(1, 2, 2))
    x = write.node("Relu", [x], "stem_relu")
    return stages(write, x, BLOCKS_18, basic_block, 1, (batch, classes), width)
