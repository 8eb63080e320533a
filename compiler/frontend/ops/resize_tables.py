"""Tables that resize an axis of a symbolic extent: indices and weights that the network computes when it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Formula
from retune.compiler.graph.builder import GraphBuilder

ROUNDINGS = {
    "round_prefer_floor": ("ceil", -0.5),
    "round_prefer_ceil": ("floor", 0.5),
    "floor": ("floor", 0.0),
    "ceil": ("ceil", 0.0),
}
"""The function that rounds a position, and what is added before, by ONNX's name."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Float64 elements of a graph's value `name` under Python's arithmetic."""

    builder: GraphBuilder
    node: OnnxNode
    name: str

    @classmethod
    def of_extent(cls, builder: GraphBuilder, node: OnnxNode, extent: int) -> "Numbers":
        name = builder.scalar(extent, "int64")
        return cls(builder, node, builder.emit("cast", [name], {"dtype": "float64"}))

    @classmethod
    def of_range(cls, builder: GraphBuilder, node: OnnxNode, shape: Sequence[int], start: int = 0) -> "Numbers":
        """start, start + 1, ... in this shape."""
        line = builder.arange(prod(shape), shape, start=start)
        return cls(builder, node, builder.emit("cast", [line], {"dtype": "float64"}))

    def apply(self, op: str, *operands: "Numbers | str | float", **attrs: object) -> "Numbers":
        """The result of an operator of the graph whose first operand is `self`."""
        names = [operand.name if isinstance(operand, Numbers) else operand for operand in operands]
        name = Formula(self.builder, self.node, "float64")(op, self.name, *names, **attrs)
        return Numbers(self.builder, self.node, name)

    def as_type(self, dtype: str) -> str:
        return self.builder.emit("cast", [self.name], {"dtype": dtype})

    def __add__(self, other: "Numbers | float") -> "Numbers":
        return self.apply("add", other)

    __radd__ = __add__

    def __mul__(self, other: "Numbers | float") -> "Numbers":
        return self.apply("mul", other)

    __rmul__ = __mul__

    def __sub__(self, other: "Numbers | float") -> "Numbers":
        return self.apply("sub", other)

    def __rsub__(self, other: float) -> "Numbers":
        return self * -1.0 + other

    def __truediv__(self, other: "Numbers | float") -> "Numbers":
        return self.apply("div", other)


D = TypeVar("D", float, Numbers)
"""Distances: of numbers that are known, or of the graph."""


def nearest_table(position: Numbers, extent: int, rounding: str) -> str:
    """The indices of the elements nearest to positions along an axis, int32."""
    op, shift = ROUNDINGS[rounding]
    # As in tables of fixed extents, positions are rounded to float32 first.
    narrow = Numbers(position.builder, position.node, position.as_type("float32"))
    rounded = (Numbers(position.builder, position.node, narrow.as_type("float64")) + shift).apply(op)
    last = Numbers.of_extent(position.builder, position.node, extent) - 1.0
    return rounded.apply("minimum", last).apply("maximum", 0.0).as_type("int32")


def weighted_tables(position: Numbers, extent: int, cubic: float | None, *, excludes: bool) -> tuple[str, str]:
    """The indices (int32) and weights (float32) of the elements around positions, both (new extent, taps). `cubic` is
    the parameter of the cubic kernel, None for linear interpolation. `excludes` gives elements outside no weight.
    """
    builder, node = position.builder, position.node
    reach = 1 if cubic is None else 2
    column = builder.value(position.name).shape[0]
    position = position.apply("reshape", shape=(column, 1))
    index = position.apply("floor") + Numbers.of_range(builder, node, (1, 2 * reach), 1 - reach)
    distance = (index - position).apply("abs")
    weights = 1.0 - distance
    if cubic is not None:
        near, far = (piece(distance, cubic) for piece in (cubic_near, cubic_far))
        is_near = distance.apply("less_equal", 1.0)
        weights = is_near.apply("where", near, far)
    if excludes:
        last = Numbers.of_extent(builder, node, extent) - 1.0
        weights = index.apply("less_equal", last).apply("where", weights, 0.0)
        weights = index.apply("less", 0.0).apply("where", 0.0, weights)
    if excludes or cubic is not None:
        weights = weights / weights.apply("reduce_sum", axes=(1,), keepdims=True)
    return index.apply("maximum", 0.0).as_type("int32"), weights.as_type("float32")


def cubic_near(d: D, a: float) -> D:
    """Keys' cubic convolution kernel with parameter `a` at distances of at most 1."""
    return (d * (a + 2) - (a + 3)) * d * d + 1.0


def cubic_far(d: D, a: float) -> D:
    """The kernel at distances from 1 to 2."""
    return (((d - 5.0) * d + 8.0) * d - 4.0) * a
