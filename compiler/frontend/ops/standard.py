"""The converters of ONNX's standard operators by name, and compositions of these operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retune.compiler.frontend.ops import (
    attention,
    conv_transpose,
    data_dependent,
    einsum,
    elementwise,
    indexing,
    logic,
    ngrams,
    nn,
    pool,
    quantized,
    reduce,
    resize,
    sampling,
    sequences,
    shape,
    spectrum,
)
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, cast_to
from retune.compiler.frontend.ops.loops import control_flow, recurrent
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array

STANDARD: Mapping[str, Converter] = {
    **attention.CONVERTERS, **control_flow.CONVERTERS, **conv_transpose.CONVERTERS, **data_dependent.CONVERTERS,
    **einsum.CONVERTERS, **elementwise.CONVERTERS, **indexing.CONVERTERS, **logic.CONVERTERS, **ngrams.CONVERTERS,
    **nn.CONVERTERS, **pool.CONVERTERS, **quantized.CONVERTERS, **recurrent.CONVERTERS, **reduce.CONVERTERS,
    **resize.CONVERTERS, **sampling.CONVERTERS, **sequences.CONVERTERS, **shape.CONVERTERS, **spectrum.CONVERTERS,
}  # fmt: skip

_OPSET = 22
"""The operator set whose operators a composition uses."""

Operand = str | float | Sequence[int] | Array


class Composition:
    """Writes operators as the definition of `node`: ONNX's by their names, such as "MatMul", and the graph's own, such
    as "reshape".

    An operand is a value's name, a number of the first value's type, or constant integers.
    """

    def __init__(self, builder: GraphBuilder, node: OnnxNode) -> None:
        self.builder = builder
        self.node = node

    def __call__(self, op: str, *operands: Operand, **attributes: Any) -> str:
        """The first result of an operator."""
        return self.results(op, *operands, **attributes)[0]

    def results(self, op: str, *operands: Operand, **attributes: Any) -> Sequence[str]:
        dtypes = [self.dtype(operand) for operand in operands if isinstance(operand, str) and operand]
        dtype = next((dtype for dtype in dtypes if dtype != "bool"), "float32")  # not that of a condition
        names = tuple(self._operand(operand, dtype) for operand in operands)
        if op in STANDARD:
            node = replace(self.node, op_type=op, inputs=names, attributes=attributes, opset=_OPSET)
            return STANDARD[op](self.builder, node)
        output = self.node.outputs[0]
        return [self.builder.emit(op, names, attributes, name=self.node.name, output=output)]

    def operand(self, index: int) -> str:
        """The name of operand `index` of the node, "" if it is omitted."""
        return self.node.inputs[index] if self.node.has_input(index) else ""

    def dtype(self, name: str) -> str:
        """The element type of a value."""
        return self.builder.value(name).dtype

    def cast(self, name: str, dtype: str) -> str:
        """A value in another element type; the value itself if it has that type."""
        return cast_to(self.builder, name, dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        """The extents of a value."""
        return self.builder.value(name).shape

    def expect(self, key: str, value: int | str) -> None:
        """Check that attribute `key` is `value`, which is also its default. Raises: UnsupportedOperatorError."""
        actual = self.node.attributes.get(key, value)
        actual = actual.decode() if isinstance(actual, bytes) else actual
        if actual != value:
            raise self.node.unsupported(f"attribute {key} is {actual!r}; only {value!r} is supported")

    def refuse(self, index: int, what: str) -> None:
        """Check that operand `index` is omitted. Raises: UnsupportedOperatorError that calls the operand `what`."""
        if self.node.has_input(index):
            raise self.node.unsupported(f"operand {index}, {what}, is not supported")

    def _operand(self, operand: Operand, dtype: str) -> str:
        if isinstance(operand, str):
            return operand
        if isinstance(operand, int | float):
            return self.builder.scalar(operand, dtype)
        return self.builder.constant(np.asarray(operand, None if isinstance(operand, np.ndarray) else "int64"))


Definition = Callable[[Composition], str | Sequence[str]]


def compose(define: Definition) -> Converter:
    """The converter of an operator that `define` writes as other operators: its result, or all its results."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        results = define(Composition(builder, node))
        return [results] if isinstance(results, str) else results

    return convert
