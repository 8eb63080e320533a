"""The layers that only benchmark networks have: loops, convolutions with a bias, transposed convolutions, group
normalization, SiLU.
"""

from collections.abc import Sequence
from copy import copy
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
from onnx import helper

from retune.compiler.frontend.zoo import layers


class LayerWriter(layers.LayerWriter):
    """A writer with more layers, and with prefixes for the names of results."""

    _prefix = ""

    def node(self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """An operator with one result, whose name gets the writer's prefix."""
        (name,) = self.nodes(op_type, inputs, [name], **attributes)
        return name

    def prefixed(self, prefix: str) -> "LayerWriter":
        """A writer of the same graph whose results have a prefix, but not its weights: to use these a second time."""
        other = copy(self)
        other._prefix = prefix
        return other

    def body(self, prefix: str) -> "LayerWriter":
        """As `prefixed`, for its own graph, the body of a loop: it takes weights from around it."""
        other = self.prefixed(prefix)
        other._graph = onnx.GraphProto(name=f"{prefix}body")
        return other

    def nodes(self, op_type: str, inputs: Sequence[str], names: Sequence[str], **attributes: Any) -> tuple[str, ...]:
        """Any operator."""
        made = [self._prefix + name for name in names]
        self._graph.node.append(helper.make_node(op_type, list(inputs), made, name=f"{made[0]}_node", **attributes))
        return tuple(made)

    def split(self, x: str, axis: int, names: Sequence[str]) -> tuple[str, ...]:
        """Equal parts of `x` along an axis."""
        made = [self._prefix + name for name in names]
        self._graph.node.append(helper.make_node("Split", [x], made, name=f"{made[0]}_split", axis=axis))
        return tuple(made)

    def shifted_convolution(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int,
        name: str,
        *,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        pad: int | None = None,
        gain: float = 1.0,
    ) -> str:
        """A convolution of equal extents with a bias; without `pad` it is padded so that stride 1 keeps the size."""
        taken, made = channels
        rank = self._spatial
        shape = (made, taken // groups, *[kernel] * rank)
        weight = self.normal(shape, gain * sqrt(2 / prod(shape[1:])), f"{name}_weight")
        margin = dilation * (kernel // 2) if pad is None else pad
        attributes = {"strides": [stride] * rank, "pads": [margin] * 2 * rank, "kernel_shape": [kernel] * rank}
        if dilation != 1:
            attributes["dilations"] = [dilation] * rank
        bias = self.normal((made,), 0.02, f"{name}_bias")
        return self.node("Conv", [x, weight, bias], name, **attributes, group=groups)

    def transposed_convolution(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int,
        name: str,
        *,
        stride: int,
        pad: int,
        bias: bool = False,
        gain: float = 1.0,
    ) -> str:
        """A transposed convolution of equal extents, which grows the size by `stride`; `channels` is (in, out)."""
        taken, made = channels
        rank = self._spatial
        # Every element of the result is a sum over kernel / stride taps an axis.
        terms = taken * max(1, kernel // stride) ** rank
        weight = self.normal((taken, made, *[kernel] * rank), gain * sqrt(2 / terms), f"{name}_weight")
        attributes = {"strides": [stride] * rank, "pads": [pad] * 2 * rank, "kernel_shape": [kernel] * rank}
        offsets = [self.normal((made,), 0.02, f"{name}_bias")] if bias else []
        return self.node("ConvTranspose", [x, weight, *offsets], name, **attributes)

    def silu(self, x: str, name: str) -> str:
        """x times the sigmoid of x."""
        return self.node("Mul", [x, self.node("Sigmoid", [x], f"{name}_sigmoid")], name)

    def group_norm(self, x: str, shape: Sequence[int], groups: int, name: str, *, epsilon: float = 1e-5) -> str:
        """Group normalization of `x`, (batch, channels, ...) of this shape, in the five nodes that exporters write."""
        channels, ones = shape[1], [1] * (len(shape) - 2)
        apart = self.node(
            "Reshape", [x, self.integers((shape[0], groups, -1), f"{name}_groups_shape")], f"{name}_groups"
        )
        unit = self.weight(np.ones(groups, np.float32), f"{name}_ones")
        none = self.weight(np.zeros(groups, np.float32), f"{name}_zeros")
        normal = self.node("InstanceNormalization", [apart, unit, none], f"{name}_instances", epsilon=epsilon)
        joined = self.node("Reshape", [normal, self.integers(shape, f"{name}_shape")], f"{name}_joined")
        scale = self.uniform((channels, *ones), f"{name}_scale")
        scaled = self.node("Mul", [joined, scale], f"{name}_scaled")
        return self.node("Add", [scaled, self.normal((channels, *ones), 0.05, f"{name}_bias")], name)

    def finish_body(self) -> onnx.GraphProto:
        """The body of a loop, whose results were declared by `result`."""
        return self._graph
