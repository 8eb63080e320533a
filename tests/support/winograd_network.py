"""A network of two convolutions that Winograd's algorithm fits."""

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Graph, Value
from tests.support.attributes import CONV


def network(
    size: int = 14, channels: int = 16, weight: np.ndarray | None = None, batch: int = 1, **attrs: Attribute
) -> Graph:
    """A residual block: two convolutions, of which the second adds the input."""
    rng = np.random.default_rng(2)
    builder = GraphBuilder("block", [Value("x", (batch, size, size, channels))])
    result = "x"
    for number in range(2):
        values = rng.standard_normal((3, 3, channels, channels), dtype=np.float32) / channels
        kernel = builder.constant(values if weight is None else weight, f"w{number}")
        bias = builder.constant(rng.standard_normal(channels, dtype=np.float32), f"b{number}")
        made = builder.emit("add", (builder.emit("conv2d", (result, kernel), {**CONV, **attrs}), bias))
        result = builder.emit("relu", (builder.emit("add", (made, "x")) if number else made,))
    return builder.finish({"y": result})
