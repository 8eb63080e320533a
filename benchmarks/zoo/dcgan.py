"""The DCGAN generator as an ONNX model: 64x64 pixels, batch normalization not folded."""

import onnx

from benchmarks.zoo.layers import LayerWriter

# A multiple of the stride 2: every pixel is a sum of equally many terms, and no checkerboard appears.
_KERNEL = 4
# channels as multiples of the width, stride, pad: the image grows 1, 4, 8, 16, 32, 64
_LAYERS = (
    (8, 1, 0),
    (4, 2, 1),
    (2, 2, 1),
    (1, 2, 1),
)
_IMAGE = 64


def dcgan(*, batch: int = 1, noise: int = 100, width: int = 64, colors: int = 3, seed: int = 0) -> onnx.ModelProto:
    """Input (batch, noise, 1, 1), output (batch, colors, 64, 64) between -1 and 1; `width` is the number of channels
    before the last layer.
    """
    write = LayerWriter("dcgan", (batch, noise, 1, 1), seed)
    x, taken = write.input, noise
    for number, (multiple, stride, pad) in enumerate(_LAYERS):
        made, name = multiple * width, f"up{number + 1}"
        x = write.transposed_convolution(x, (taken, made), _KERNEL, f"{name}_conv", stride=stride, pad=pad)
        x = write.node("Relu", [write.batch_norm(x, made, f"{name}_bn")], f"{name}_relu")
        taken = made
    x = write.transposed_convolution(x, (taken, colors), _KERNEL, "image_conv", stride=2, pad=1)
    return write.finish(write.node("Tanh", [x], "image"), (batch, colors, _IMAGE, _IMAGE))
