"""Replaces a chain of pointwise operators from one 8-bit tensor to another by lookups in a table of 256 bytes.

NumPy computes the table at compile time, by the definitions of the operators. A rule of the pass `compute_quantized`.
"""

from dataclasses import replace

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ir import Array, Node
from retune.compiler.ir.dot import BYTES
from retune.compiler.ops import OPS, POINTWISE

_LONGEST = 64
"""Most nodes of a chain."""


def lookup_of(builder: GraphBuilder, node: Node) -> str | None:
    """quantize(f(dequantize(x), ...)) -> lookup(x, table) for the quantization `node`. The operands of f, made of
    pointwise operators, are single numbers or computed from x.

    Returns the name of the new value, x itself if the table would change nothing, None if `node` is no such function.
    """
    function = _Function(builder)
    if builder.value(node.inputs[2]).dtype not in BYTES or not all(map(function.include, node.inputs)):
        return None
    source = builder.value(function.source) if function.source else None
    if source is None or source.shape != builder.value(node.inputs[0]).shape or not source.size:
        return None
    numbers = np.arange(256, dtype=np.uint8).view(source.dtype)
    arrays = {function.source: numbers}
    for step in (*function.nodes, node):
        operands = [arrays[name] if name in arrays else _number(builder, name) for name in step.inputs]
        # Scales and zero points are single numbers, so that any axis will do: the table has one axis.
        attrs = {**step.attrs, "axis": 0} if "axis" in step.attrs else step.attrs
        arrays[step.output] = evaluate_node(replace(step, attrs=attrs), operands)
    table = arrays[node.output]
    if table.dtype == numbers.dtype and (table == numbers).all():
        return function.source
    inputs = [function.source, builder.constant(table, "table")]
    return builder.emit("lookup", inputs, name=node.name, output=node.output)


def _number(builder: GraphBuilder, name: str) -> Array:
    """A constant operand: a single number without its axes, which would add axes to the table, or a lookup's table."""
    array = builder.array(name)
    assert array is not None, "other operands depend on the source"
    return array.reshape(()) if array.size == 1 else array


class _Function:
    """The pointwise `nodes`, in order, of values that depend on the bytes `source` alone."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.source = ""
        self.nodes: list[Node] = []

    def include(self, name: str) -> bool:
        """Add the nodes that compute `name`, and say whether it is a single number or a function of the source.

        The first bytes that are not computed from other bytes become the source.
        """
        array = self.builder.array(name)
        if array is not None:
            return array.size == 1
        if name == self.source or any(node.output == name for node in self.nodes):
            return True
        node, size, source = self.builder.producer(name), len(self.nodes), self.source
        if node is not None and size < _LONGEST and _is_step(node):
            # The other operand of a lookup is its table.
            if all(map(self.include, node.inputs[:1] if node.op == "lookup" else node.inputs)):
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
