"""The operators that `benchmarks.kernels` measures, each with a schedule and its tile sizes.

Batch 1, float32. A convolution is named by kernel, stride, output size, and input and output channels. The shapes are
those of ResNet-50, MobileNet-V2, ResNeXt-50, DeepLab, DCGAN, 3D-ResNet-18 and BERT.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.hand_schedules import (
    Schedule,
    convolution,
    depthwise,
    product,
    rows,
    small_image_convolution,
    transposed_convolution,
)
from benchmarks.problems import Convolution, LayerNorm, Problem, Product, Softmax, TransposedConvolution


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its schedule, and whether its speed is reported in bytes per second rather than operations."""

    problem: Problem
    schedule: Schedule
    in_bytes: bool = False


def _square(size: int, taken: int, made: int, kernel: int, schedule: Schedule, *, stride: int = 1) -> tuple[str, Case]:
    """A convolution of a ResNet."""
    name = f"conv{kernel}x{kernel}_{f's{stride}_' if stride > 1 else ''}{size}x{size}_{taken}_{made}"
    return name, Case(Convolution((size, size), (taken, made), kernel, stride=stride), schedule)


_RESNET = dict(
    (
        _square(112, 3, 64, 7, convolution(14, 32, inner="rc ry rx x c"), stride=2),
        _square(56, 64, 64, 1, convolution(14, 32)),
        _square(56, 64, 64, 3, convolution(14, 32)),
        _square(56, 64, 256, 1, convolution(14, 32)),
        _square(56, 256, 64, 1, convolution(14, 32)),
        _square(56, 256, 128, 1, convolution(14, 32)),
        _square(28, 128, 128, 3, convolution(14, 32), stride=2),
        _square(28, 128, 128, 3, convolution(14, 32)),
        _square(28, 128, 512, 1, convolution(14, 32)),
        _square(28, 256, 512, 1, convolution(14, 32), stride=2),
        _square(28, 512, 128, 1, convolution(14, 32)),
        _square(28, 512, 256, 1, convolution(14, 32)),
        _square(14, 256, 256, 3, convolution(14, 32), stride=2),
        _square(14, 256, 256, 3, convolution(14, 32)),
        _square(14, 256, 1024, 1, convolution(14, 32)),
        _square(14, 512, 1024, 1, convolution(14, 32), stride=2),
        _square(14, 1024, 256, 1, convolution(14, 32)),
        _square(14, 1024, 512, 1, convolution(14, 32)),
        _square(7, 512, 512, 3, small_image_convolution(7, 32, 128), stride=2),
        _square(7, 512, 512, 3, small_image_convolution(7, 32, 64)),
        _square(7, 512, 2048, 1, small_image_convolution(7, 32, 256)),
        _square(7, 1024, 2048, 1, small_image_convolution(7, 32, 256), stride=2),
        _square(7, 2048, 512, 1, small_image_convolution(7, 32, 256)),
    )
)


def _depthwise(size: int, channels: int, schedule: Schedule, *, stride: int = 1) -> tuple[str, Case]:
    """A depthwise convolution of MobileNet-V2."""
    name = f"depthwise3x3_{f's{stride}_' if stride > 1 else ''}{size}x{size}_{channels}"
    return name, Case(
        Convolution((size, size), (channels, channels), 3, stride=stride, groups=channels), schedule, True
    )


_MOBILENET = dict(
    (
        _depthwise(112, 32, depthwise(2, 7)),
        _depthwise(56, 96, depthwise(1, 7, channels_first=True), stride=2),
        _depthwise(56, 144, depthwise(2, 7)),
        _depthwise(28, 144, depthwise(2, 4), stride=2),
        _depthwise(28, 192, depthwise(2, 7)),
        _depthwise(14, 192, depthwise(1, 7, channels_first=True), stride=2),
        _depthwise(14, 384, depthwise(2, 7)),
        _depthwise(14, 576, depthwise(2, 7)),
        _depthwise(7, 576, depthwise(1, 7, channels_first=True), stride=2),
        _depthwise(7, 960, depthwise(1, 7, channels_first=True)),
    )
)

_OTHERS = {
    "conv3x3_g32_14x14_512_512": Case(
        Convolution((14, 14), (512, 512), 3, groups=32), convolution(14, 16, inner="ry rc rx x c", unroll_limit=64)
    ),
    "conv3x3_g32_7x7_1024_1024": Case(Convolution((7, 7), (1024, 1024), 3, groups=32), convolution(7, 32)),
    "conv3x3_d2_28x28_256_256": Case(Convolution((28, 28), (256, 256), 3, dilation=2), convolution(14, 32)),
    "conv_transpose4x4_s2_16x16_512_256": Case(
        TransposedConvolution((16, 16), (512, 256)), transposed_convolution(8, 32)
    ),
    "conv_transpose4x4_s2_32x32_256_128": Case(
        TransposedConvolution((32, 32), (256, 128)), transposed_convolution(8, 32)
    ),
    "conv1d_3_512_256_256": Case(Convolution((512,), (256, 256), 3), convolution(8, 32)),
    "conv3d_3x3x3_4x14x14_256_256": Case(Convolution((4, 14, 14), (256, 256), 3), convolution(14, 32)),
    "conv3x3_bias_relu_56x56_64_64": Case(Convolution((56, 56), (64, 64), 3, epilogue=True), convolution(14, 32)),
    "conv3x3_bias_relu_14x14_256_256": Case(Convolution((14, 14), (256, 256), 3, epilogue=True), convolution(14, 32)),
    "softmax_1536x128": Case(Softmax((1536, 128)), rows(2), True),
    "softmax_6144x512": Case(Softmax((6144, 512)), rows(1), True),
    "softmax_16384x1024": Case(Softmax((16384, 1024)), rows(1), True),
    "layer_norm_128x768": Case(LayerNorm((128, 768)), rows(4, 32), True),
    "layer_norm_1024x768": Case(LayerNorm((1024, 768)), rows(4, 32), True),
    "layer_norm_16384x1024": Case(LayerNorm((16384, 1024)), rows(1), True),
}

CASES: Mapping[str, Case] = {
    "matmul_512x512x512": Case(Product(512, 512, 512), product(8, 32)),
    "matmul_1024x1024x1024": Case(Product(1024, 1024, 1024), product(8, 32)),
    "matmul_2048x2048x2048": Case(Product(2048, 2048, 2048), product(8, 32)),
    "batch_matmul_12x128x64x128": Case(Product(128, 64, 128, 12), product(8, 32, batched=True)),
    "batch_matmul_12x128x128x64": Case(Product(128, 128, 64, 12), product(8, 32, batched=True)),
    "batch_matmul_12x512x64x512": Case(Product(512, 64, 512, 12), product(8, 32, batched=True)),
    **_RESNET,
    **_MOBILENET,
    **_OTHERS,
}
"""Every case by name."""
