"""Networks with `quantize` and `dequantize`, for tests of what becomes of them."""

from typing import Any

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Graph, Value
from tests.support import attributes

CONV: dict[str, Attribute] = {**attributes.CONV, "layout": "NCHW"}


class Network:
    """Writes quantized values."""

    def __init__(self, *shape: int, dtype: str = "uint8") -> None:
        self.builder = GraphBuilder("net", [Value("x", shape)])
        self.dtype = dtype
        self.rng = np.random.default_rng(4)

    def parameters(self, scale: float | np.ndarray[Any, Any], zero: int) -> list[str]:
        """A scale and its zero point as constants."""
        scales = np.asarray(scale, np.float32)
        zeros = np.full(scales.shape, zero, self.dtype)
        return [self.builder.constant(scales, "scale"), self.builder.constant(zeros, "zero")]

    def stored(self, x: str, scale: float, zero: int) -> str:
        """Quantized and dequantized again."""
        attrs = {"axis": 0}
        number = self.builder.emit("quantize", [x, *self.parameters(scale, zero)], attrs)
        return self.builder.emit("dequantize", [number, *self.parameters(scale, zero)], attrs)

    def weight(self, *shape: int, zero: int = 0) -> str:
        """Signed bytes with a scale for each result."""
        numbers = self.builder.constant(self.rng.integers(-120 + zero, 120 + zero, shape).astype(np.int8), "w")
        scale = self.builder.constant(np.linspace(0.01, 0.02, shape[0], dtype=np.float32), "w_scale")
        zeros = self.builder.constant(np.full(shape[0], zero, np.int8), "w_zero")
        return self.builder.emit("dequantize", [numbers, scale, zeros], {"axis": 0})

    def conv(self, x: str, *shape: int, zero: int = 0) -> str:
        """A convolution with such a weight."""
        return self.builder.emit("conv2d", [x, self.weight(*shape, zero=zero)], CONV, name="conv")


def residual_block() -> Graph:
    """A stem, two convolutions with the stem's result added, and one that reads the sum."""
    net = Network(1, 4, 5, 5)
    b = net.builder
    x = net.stored(net.conv(net.stored("x", 0.05, 128), 4, 4, 3, 3), 0.1, 120)
    y = net.stored(b.emit("relu", [net.conv(x, 4, 4, 3, 3)]), 0.2, 0)
    y = net.stored(net.conv(y, 4, 4, 3, 3), 0.4, 100)
    y = net.stored(b.emit("relu", [b.emit("add", [y, x])]), 0.3, 0)
    return b.finish({"y": net.conv(y, 2, 4, 3, 3)})
