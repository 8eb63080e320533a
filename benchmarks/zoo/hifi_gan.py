"""The generator of HiFi-GAN, from spectra to sound by transposed and dilated 1D convolutions, as an ONNX model."""

from collections.abc import Sequence

import onnx

from benchmarks.zoo.layers import LayerWriter

_BANDS = 80
_KERNELS, _DILATIONS = (3, 7, 11), (1, 3, 5)


def hifi_gan(
    *, batch: int = 1, frames: int = 32, width: int = 512, rates: Sequence[int] = (8, 8, 2, 2), seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 80, frames), output `sound` (batch, 1, frames · product of `rates`) between -1 and 1.

    Configuration V1 of Kong et al., "HiFi-GAN" (arXiv 2010.05646), with the weight normalization folded. Each of the
    `rates` is a factor by which the sound gets longer and half as wide.
    """
    write = LayerWriter("hifi_gan", (batch, _BANDS, frames), seed)
    x = write.shifted_convolution(write.input, (_BANDS, width), 7, "pre")
    length = frames
    for stage, rate in enumerate(rates):
        name = f"up{stage}"
        x = _leaky(write, x, f"{name}_leaky")
        channels = (width, width // 2)
        x = write.transposed_convolution(x, channels, 2 * rate, name, stride=rate, pad=rate // 2, bias=True)
        width, length = width // 2, length * rate
        parts = [_residual(write, x, width, kernel, f"{name}_k{kernel}") for kernel in _KERNELS]
        total = write.node("Add", [write.node("Add", parts[:2], f"{name}_two"), parts[2]], f"{name}_sum")
        x = write.node("Div", [total, write.number(len(parts), f"{name}_count")], f"{name}_mean")
    x = _leaky(write, x, "post_leaky", slope=0.01)
    x = write.shifted_convolution(x, (width, 1), 7, "post", gain=0.3)
    return write.finish(write.node("Tanh", [x], "sound"), (batch, 1, length))


def _residual(write: LayerWriter, x: str, width: int, kernel: int, name: str) -> str:
    """Pairs of convolutions, the first of each ever more dilated; what a pair makes is added."""
    for dilation in _DILATIONS:
        at = f"{name}_d{dilation}"
        inner = _leaky(write, x, f"{at}_leaky1")
        inner = write.shifted_convolution(inner, (width, width), kernel, f"{at}_conv1", dilation=dilation)
        inner = _leaky(write, inner, f"{at}_leaky2")
        inner = write.shifted_convolution(inner, (width, width), kernel, f"{at}_conv2", gain=0.5)
        x = write.node("Add", [inner, x], at)
    return x


def _leaky(write: LayerWriter, x: str, name: str, *, slope: float = 0.1) -> str:
    return write.node("LeakyRelu", [x], name, alpha=slope)
