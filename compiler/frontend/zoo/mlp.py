"""A multi-layer perceptron as an ONNX model, with ReLU between layers and none at the end."""

from collections.abc import Sequence
from itertools import pairwise

import onnx

from retune.compiler.frontend.zoo.layers import LayerWriter


def mlp(*, batch: int = 1, widths: Sequence[int] = (784, 512, 512, 10), seed: int = 0) -> onnx.ModelProto:
    """Fully connected layers: input (batch, widths[0]), output (batch, widths[-1])."""
    write = LayerWriter("mlp", (batch, widths[0]), seed)
    x = write.input
    last = len(widths) - 2
    for i, features in enumerate(pairwise(widths)):
        x = write.fully_connected(x, features, "logits" if i == last else f"fc{i + 1}")
        if i != last:
            x = write.node("Relu", [x], f"relu{i + 1}")
    return write.finish(x, (batch, widths[-1]))
