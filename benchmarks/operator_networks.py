"""Single-operator ONNX models with seeded weights, and their networks for tuning.

Float32, batch 1; the shapes are those of ResNet-18, ResNet-50, MobileNet-V2 and an MLP.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from retune.compiler.core.target import Target
from retune.compiler.frontend.zoo.layers import LayerWriter
from retune.compiler.tune.extract import ExtractedNetwork, extract_network


def _matmul(rows: int, inner: int, columns: int) -> bytes:
    write = LayerWriter("operator", (rows, inner), 0)
    weight = np.random.default_rng(1).standard_normal((inner, columns), dtype=np.float32)
    made = write.node("MatMul", [write.input, write.weight(weight, "weight")], "output")
    return bytes(write.finish(made, (rows, columns)).SerializeToString())


def _convolution(size: int, channels: tuple[int, int], kernel: int, *, stride: int = 1, groups: int = 1) -> bytes:
    """`size` is that of the output."""
    write = LayerWriter("operator", (1, channels[0], size * stride, size * stride), 0)
    made = write.convolution(write.input, channels, kernel, "output", stride=stride, groups=groups)
    return bytes(write.finish(made, (1, channels[1], size, size)).SerializeToString())


OPERATORS: dict[str, Callable[[], bytes]] = {
    "matmul_512x512x512": partial(_matmul, 512, 512, 512),
    "matmul_1024x1024x1024": partial(_matmul, 1024, 1024, 1024),
    "dense_1x512x1000": partial(_matmul, 1, 512, 1000),
    "dense_1x784x512": partial(_matmul, 1, 784, 512),
    "conv3x3_56x56_64_64": partial(_convolution, 56, (64, 64), 3),
    "conv3x3_28x28_128_128": partial(_convolution, 28, (128, 128), 3),
    "conv3x3_14x14_256_256": partial(_convolution, 14, (256, 256), 3),
    "conv3x3_7x7_512_512": partial(_convolution, 7, (512, 512), 3),
    "conv3x3_s2_28x28_64_128": partial(_convolution, 28, (64, 128), 3, stride=2),
    "conv7x7_s2_112x112_3_64": partial(_convolution, 112, (3, 64), 7, stride=2),
    "conv1x1_56x56_64_256": partial(_convolution, 56, (64, 256), 1),
    "conv1x1_14x14_256_1024": partial(_convolution, 14, (256, 1024), 1),
    "conv1x1_14x14_384_64": partial(_convolution, 14, (384, 64), 1),
    "depthwise3x3_112x112_32": partial(_convolution, 112, (32, 32), 3, groups=32),
    "depthwise3x3_14x14_384": partial(_convolution, 14, (384, 384), 3, groups=384),
}
"""ONNX text of every operator; a convolution is named kernel, stride, output size, channels in, channels out."""


def operator_network(name: str, threads: int, winograd: bool = False) -> ExtractedNetwork:
    """The operator as a network of one layer, for `threads` threads of this machine: one tuning task, or several where
    `winograd` offers other ways to compute it.
    """
    with tempfile.TemporaryDirectory(prefix="retune-operator-") as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(OPERATORS[name]())
        found = extract_network(str(path), str(Target.host()), threads, winograd=winograd)
    # Changes of layout around the operator are large parts of so small a network.
    return ExtractedNetwork(found.source, found.target, threads, found.graph, found.partition.of_reductions())
