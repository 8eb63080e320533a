"""Checks of nodes and graphs against the operators that they name."""

from collections.abc import Sequence

from retune.compiler import ops
from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.ir import Graph, Node, Value
from retune.compiler.ops import OpCall


def call_of(node: Node, operands: Sequence[Value]) -> OpCall:
    return OpCall(node.op, tuple(operands), node.attrs, node.name)


def infer_value(node: Node, operands: Sequence[Value]) -> Value:
    """Check a node against its operator and describe its result.

    Raises: DefinitionError when the operator is unknown, or operands or attributes do not fit it.
    """
    result = ops.check(call_of(node, operands))
    return Value(node.output, result.shape, result.dtype)


def verify(graph: Graph) -> None:
    """`Graph.verify`, and check every node against its operator.

    Raises: DefinitionError that names the node at fault.
    """
    graph.verify()
    for node in graph.nodes:
        value = infer_value(node, [graph.values[name] for name in node.inputs])
        if value != graph.values[node.output]:
            raise DefinitionError(f"graph {graph.name}: {node} gives {value}, not {graph.values[node.output]}")
