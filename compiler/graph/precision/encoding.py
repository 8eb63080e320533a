"""Encodings: how a value is stored for a layer that computes in another precision than float32."""

from dataclasses import dataclass

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Attribute

_TINY = 2.0**-100
"""Least scale, for values that are all zero: its reciprocal is finite."""
MIDDLE = 128
"""Zero point of bytes whose scale is computed at run time: unsigned bytes times signed weights are fastest."""


@dataclass(frozen=True, slots=True)
class Halves:
    """bfloat16."""

    def encode(self, builder: GraphBuilder, value: str, name: str) -> str:
        """The value as bfloat16, by a node called `name`."""
        return builder.emit("cast", [value], {"dtype": "bfloat16"}, name=name, output="halves")

    def decode(self, builder: GraphBuilder, name: str) -> str:
        """The stored value as float32."""
        return builder.emit("cast", [name], {"dtype": "float32"})


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes with one scale and zero point: a number q stands for scale * (q - zero)."""

    scale: float
    zero: int
    dtype: str

    @staticmethod
    def of(low: float, high: float, *, is_symmetric: bool = False) -> "Bytes":
        """The encoding of numbers between `low` and `high`, which always represents 0. Where nothing is negative, bytes
        are unsigned with the zero point 0; else unsigned with another, or signed with zero point 0 if `is_symmetric`.
        """
        low, high = min(low, 0.0), max(high, 0.0)
        if low < 0.0 and is_symmetric:
            return Bytes(_scale(max(-low, high), 127), 0, "int8")
        scale = _scale(high - low, 255)
        return Bytes(scale, round(-low / scale), "uint8")

    def encode(self, builder: GraphBuilder, value: str, name: str) -> str:
        """The value as bytes, by a node called `name`."""
        return builder.emit("quantize", [value, *self._numbers(builder)], {"axis": 0}, name=name, output="bytes")

    def decode(self, builder: GraphBuilder, name: str) -> str:
        """The stored value as float32."""
        return builder.emit("dequantize", [name, *self._numbers(builder)], {"axis": 0})

    def _numbers(self, builder: GraphBuilder) -> tuple[str, str]:
        return builder.scalar(self.scale, "float32"), builder.scalar(self.zero, self.dtype)


def _scale(extent: float, steps: int) -> float:
    """A quantum as a float32 number."""
    return float(np.float32(max(extent / steps, _TINY)))


Encoding = Halves | Bytes


def quantized_weight(weight: Array, axis: int) -> tuple[Array, Array]:
    """A weight as signed bytes, and the scale of each element of `axis`: the largest magnitude becomes 127."""
    others = tuple(number for number in range(weight.ndim) if number != axis)
    scale = np.maximum(np.abs(weight).max(axis=others) / 127, _TINY).astype(np.float32)
    column = scale.reshape([-1 if number == axis else 1 for number in range(weight.ndim)])
    return np.clip(np.round(weight / column), -127, 127).astype(np.int8), scale


def encode_at_run_time(builder: GraphBuilder, value: str, axes: tuple[int, ...], name: str) -> tuple[str, str]:
    """The value as unsigned bytes with the zero point `MIDDLE`, and its scale: the largest magnitude along `axes`,
    which stay with extent 1, over 127. The nodes are called `name`.
    """

    def emit(op: str, operands: list[str | float], **attrs: Attribute) -> str:
        names = [operand if isinstance(operand, str) else builder.scalar(operand, "float32") for operand in operands]
        return builder.emit(op, names, attrs, name=name, output="bytes")

    size = emit("reduce_max", [emit("abs", [value])], axes=axes, keepdims=True)
    scale = emit("maximum", [emit("mul", [size, 1 / 127]), _TINY])
    ratio, middle = emit("mul", [value, emit("div", [1.0, scale])]), builder.scalar(MIDDLE, "int32")
    return emit("saturate", [ratio, middle], dtype="uint8"), scale


def times_middle(weight: Array, axis: int) -> Array:
    """What the zero point of a value encoded at run time adds to each sum of products: MIDDLE times the sum of the
    weights.
    """
    others = tuple(number for number in range(weight.ndim) if number != axis)
    return np.asarray(weight.sum(axis=others, dtype=np.int32) * MIDDLE)
