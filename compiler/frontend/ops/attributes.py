"""An ONNX node as converters see it, `OnnxNode`: its attributes with Python types, and its operands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import numpy_helper

from retune.compiler.core.errors import UnknownValueError, UnsupportedOperatorError
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Value
from retune.compiler.ir.dims import whole

MOST_ITERATIONS = 10_000
"""Most iterations of a loop to unroll: a larger graph takes seconds to build, and is too large to compile."""

ConvertBody = Callable[[onnx.GraphProto, Sequence[str]], Sequence[str]]
"""Converts a sub-graph of a node, given the names of values for its inputs, and returns the names of its outputs."""

ConvertStep = Callable[[onnx.GraphProto, GraphBuilder, Callable[[str], str], Sequence[str]], Sequence[str]]
"""As `ConvertBody`, into another builder; the third argument gives values there for those of the graph around it."""


class TensorSequence(str):
    """An operand or result that is a sequence of tensors, for which the graph has no value. It stands where the name of
    a value would, and `parts` are the names of its tensors.
    """

    parts: tuple[str, ...]

    def __new__(cls, parts: Sequence[str]) -> "TensorSequence":
        sequence = super().__new__(cls, f"({', '.join(parts)})")
        sequence.parts = tuple(parts)
        return sequence


class ReportedError(UnsupportedOperatorError):
    """A sub-graph did not convert; the problems of its nodes are already in the importer's list."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node of the model during conversion, whose methods read its attributes and operands.

    `inputs` are names of values in the graph under construction ("" for an omitted operand), `outputs` the model's own
    names. Methods raise UnsupportedOperatorError for an attribute of another type and for a missing operand, and
    UnknownValueError, its subclass, for an operand that must be constant and is not.
    """

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int
    convert_body: ConvertBody | None = None
    convert_step: ConvertStep | None = None

    def has_input(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] != ""

    def integer(self, key: str, default: int) -> int:
        value = self.attributes.get(key, default)
        if not isinstance(value, int):
            raise self.unsupported(f"attribute {key} must be an int")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.attributes.get(key, default)
        if not isinstance(value, int | float):
            raise self.unsupported(f"attribute {key} must be a float")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.attributes.get(key, default)
        # Protobuf stores ONNX strings as bytes; a default is a str.
        if isinstance(value, bytes):
            return value.decode()
        if not isinstance(value, str):
            raise self.unsupported(f"attribute {key} must be a string")
        return value

    def ints(self, key: str) -> tuple[int, ...] | None:
        """A list-of-ints attribute, None if absent."""
        value = self.attributes.get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or not all(isinstance(item, int) for item in value):
            raise self.unsupported(f"attribute {key} must be a list of ints")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self.attributes.get(key, ())
        if not isinstance(value, Sequence) or not all(isinstance(item, int | float) for item in value):
            raise self.unsupported(f"attribute {key} must be a list of floats")
        return tuple(map(float, value))

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.attributes.get(key, ())
        if not isinstance(value, Sequence) or not all(isinstance(item, bytes) for item in value):
            raise self.unsupported(f"attribute {key} must be a list of strings")
        return tuple(item.decode() for item in value)

    def tensor(self, key: str) -> Array | None:
        value = self.attributes.get(key)
        if value is None:
            return None
        if not isinstance(value, onnx.TensorProto):
            raise self.unsupported(f"attribute {key} must be a dense tensor")
        return numpy_helper.to_array(value)

    def operand(self, builder: GraphBuilder, index: int) -> Value:
        """The description of a required operand."""
        if not self.has_input(index):
            raise self.unsupported(f"operand {index} is missing")
        if isinstance(self.inputs[index], TensorSequence):
            raise self.unsupported(f"operand {index} is a sequence of tensors")
        return builder.value(self.inputs[index])

    def array(self, builder: GraphBuilder, index: int, what: str) -> Array:
        """The content of the required operand `index`, which must be constant; `what` names it in messages."""
        return self.known(builder, self.operand(builder, index).name, what)

    def known(self, builder: GraphBuilder, name: str, what: str) -> Array:
        """The content of the value `name`, which must be constant; `what` names it in messages."""
        array = builder.array(name)
        if array is None:
            inputs = builder.inputs_of(name)
            raise UnknownValueError(f"{self.label}: {what} must be a constant, but depends on {_names(inputs)}", inputs)
        return array

    def body(self, key: str, operands: Sequence[str]) -> Sequence[str]:
        """The outputs of the sub-graph `key`, written into the graph with these operands."""
        graph = self._sub_graph(key, operands)
        assert self.convert_body is not None
        return self.convert_body(graph, operands)

    def step(
        self, key: str, builder: GraphBuilder, capture: Callable[[str], str], operands: Sequence[str]
    ) -> Sequence[str]:
        """The outputs of the sub-graph `key`, written into the graph of a step; see `ConvertStep`."""
        graph = self._sub_graph(key, operands)
        assert self.convert_step is not None
        return self.convert_step(graph, builder, capture, operands)

    def _sub_graph(self, key: str, inputs: Sequence[str]) -> onnx.GraphProto:
        graph = self.attributes.get(key)
        if self.convert_body is None or not isinstance(graph, onnx.GraphProto):
            raise self.unsupported(f"attribute {key} must be a graph")
        if len(graph.input) != len(inputs):
            raise self.unsupported(f"its {key} takes {len(graph.input)} inputs, not {len(inputs)}")
        return graph

    def int_list(self, builder: GraphBuilder, index: int, what: str) -> tuple[int, ...]:
        """A constant operand as a tuple of ints."""
        return tuple(whole(item) for item in self.array(builder, index, what).flat)

    def axes(self, builder: GraphBuilder, index: int, since: int) -> tuple[int, ...] | None:
        """Axes: an attribute before opset `since`, operand `index` from then on; None if omitted.

        The body of a function may use another operator set than the model: a present operand counts.
        """
        if self.has_input(index):
            return self.int_list(builder, index, "axes")
        return self.ints("axes") if self.opset < since or "axes" in self.attributes else None

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front."""
        # ONNX counts negative axes from the end, as NumPy does.
        if not -rank <= axis < rank:
            raise self.unsupported(f"axis {axis} is outside a tensor of rank {rank}")
        # Python's modulo is never negative; a scalar has only axis 0.
        return axis % rank if rank else 0

    def check_iterations(self, iterations: int) -> None:
        """Reject unrolling so many iterations."""
        if iterations > MOST_ITERATIONS:
            raise self.unsupported(f"runs for more than {MOST_ITERATIONS:,} iterations")

    def unsupported(self, why: str) -> UnsupportedOperatorError:
        """The error to raise about this node."""
        return UnsupportedOperatorError(f"{self.label}: {why}")

    @property
    def label(self) -> str:
        return f"{self.name!r} ({self.op_type})"


def _names(inputs: Sequence[str]) -> str:
    return f"the input{'s' if len(inputs) > 1 else ''} {', '.join(map(repr, inputs))}"


def read_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """All attributes of a node as Python values; tensors and sub-graphs stay protocol messages."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
