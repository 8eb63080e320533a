"""In: nothing. Out: the table of operators that `benchmarks.kernels` measures, each with a schedule and its tiles.

Always: batch 1, float32. A convolution is named kernel, stride, output size, channels in and out; the shapes are those
of ResNet-50, MobileNet-V2, ResNeXt-50, DeepLab, DCGAN, 3D-ResNet-18 and BERT.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.hand_schedules import (
    Schedule,
    batched_product,
    convolution,
    product,
    small_image_convolution,
)
from benchmarks.problems import Convolution, Problem, Product


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, the schedule written for it, and whether memory limits it rather than arithmetic."""

    problem: Problem
    schedule: Schedule
    memory_bound: bool = False


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
        _square(7, 512, 512, 3, small_image_convolution(7, 64, 128), stride=2),
        _square(7, 512, 512, 3, small_image_convolution(7, 64, 128)),
        _square(7, 512, 2048, 1, small_image_convolution(7, 64, 128)),
        _square(7, 1024, 2048, 1, small_image_convolution(7, 64, 128), stride=2),
        _square(7, 2048, 512, 1, small_image_convolution(7, 64, 128)),
    )
)

CASES: Mapping[str, Case] = {
    "matmul_512x512x512": Case(Product(512, 512, 512), product(8, 32)),
    "matmul_1024x1024x1024": Case(Product(1024, 1024, 1024), product(8, 32)),
    "matmul_2048x2048x2048": Case(Product(2048, 2048, 2048), product(8, 32)),
    "batch_matmul_12x128x64x128": Case(Product(128, 64, 128, 12), batched_product(8, 32)),
    "batch_matmul_12x128x128x64": Case(Product(128, 128, 64, 12), batched_product(8, 32)),
    "batch_matmul_12x512x64x512": Case(Product(512, 64, 512, 12), batched_product(8, 32)),
    **_RESNET,
}
"""Every case by name."""
