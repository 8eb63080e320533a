"""Slow evaluation of a graph by NumPy, without passes or kernels: the oracle of the tests, and constant folding."""

from collections.abc import Mapping, Sequence

from retune.compiler import ops
from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.ir import Array, Graph, Node, Value
from retune.compiler.graph.verify import call_of


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """Run `graph` and return its outputs in order.

    Raises: DefinitionError when an input is missing or does not have the graph's shape or dtype.
    """
    arrays: dict[str, Array] = dict(graph.constants)
    for value in graph.inputs:
        if value.name not in inputs:
            raise DefinitionError(f"graph {graph.name}: no array for input {value}")
        array = inputs[value.name]
        if array.shape != value.shape or array.dtype.name != value.dtype:
            raise DefinitionError(f"graph {graph.name}: input {value} got {array.dtype.name}{list(array.shape)}")
        arrays[value.name] = array
    # Later nodes replace earlier nodes in the dict, so the last reader stays; freeing after it bounds the memory.
    last_reader = {name: node for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        arrays[node.output] = evaluate_node(node, [arrays[name] for name in node.inputs])
        for name in set(node.inputs):
            if last_reader[name] is node and name not in graph.outputs:
                del arrays[name]
    return tuple(arrays[name] for name in graph.outputs)


def evaluate_node(node: Node, operands: Sequence[Array]) -> Array:
    """The result of one node for concrete operands, in the operands' dtype."""
    described = [Value(name, a.shape, a.dtype.name) for name, a in zip(node.inputs, operands, strict=True)]
    return ops.evaluate(call_of(node, described), operands)
