"""Replaces functions of one 8-bit value, up to the next quantization, by lookups in a table of 256 bytes.

NumPy computes the table at compile time, by the definitions of the operators in between.
"""

from dataclasses import replace

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ir import Array, Node
from retune.compiler.ir.dot import BYTES
from retune.compiler.ops import OPS, POINTWISE

_LONGEST = 64
"""Most nodes of a function."""


def lookup_of(builder: GraphBuilder, node: Node) -> str | None:
    """quantize(f(dequantize(x), ...)) -> lookup(x, table), for an f of pointwise operators and single numbers whose
    other operands all come from the same bytes x.
    """
    function = _Function(builder)
    if builder.value(node.inputs[2]).dtype not in BYTES or not all(map(function.takes, node.inputs)):
        return None
    source = builder.value(function.source) if function.source else None
    if source is None or source.shape != builder.value(node.inputs[0]).shape or not source.size:
        return None
    numbers = np.arange(256, dtype=np.uint8).view(source.dtype)
    arrays = {function.source: numbers}
    for step in (*function.nodes, node):
        operands = [arrays[name] if name in arrays else _number(builder, name) for name in step.inputs]
        attrs = {**step.attrs, "axis": 0} if "axis" in step.attrs else step.attrs
        arrays[step.output] = evaluate_node(replace(step, attrs=attrs), operands)
    table = arrays[node.output]
    if table.dtype == numbers.dtype and (table == numbers).all():
        return function.source
    inputs = [function.source, builder.constant(table, "table")]
    return builder.emit("lookup", inputs, name=node.name, output=node.output)


def _number(builder: GraphBuilder, name: str) -> Array:
    """A single number without axes, which would extend those of the table; tables stay."""
    array = builder.array(name)
    assert array is not None, "other operands depend on the source"
    return array.reshape(()) if array.size == 1 else array


class _Function:
    """The pointwise `nodes`, in order, of values that depend on the bytes `source` alone."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.source = ""
        self.nodes: list[Node] = []

    def takes(self, name: str) -> bool:
        """Whether a value is a single number or a function of the source, which the first value decides."""
        array = self.builder.array(name)
        if array is not None:
            return array.size == 1
        if name == self.source or any(node.output == name for node in self.nodes):
            return True
        node, size, source = self.builder.producer(name), len(self.nodes), self.source
        if node is not None and size < _LONGEST and _is_step(node):
            # The other operand of a lookup is its table.
            if all(map(self.takes, node.inputs[:1] if node.op == "lookup" else node.inputs)):
                self.nodes.append(node)
                return True
            del self.nodes[size:]
            self.source = source
        if self.builder.value(name).dtype not in BYTES or self.source not in ("", name):
            return False
        self.source = name
        return True


def _is_step(node: Node) -> bool:
    return node.op in ("quantize", "dequantize") or OPS[node.op].kind in POINTWISE
