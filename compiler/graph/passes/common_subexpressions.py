"""Constant folding, common subexpression elimination and dead code elimination.

Two nodes are equal if they have the same operator, attributes and operands; small constants are compared by content.
"""

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Attribute, Graph, Node

# Scalars, axes, biases; equal weights are rare, and comparing them would read every byte of the network.
_SMALL_BYTES = 4096
_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "equal"})

Key = tuple[str, tuple[str, ...], tuple[tuple[str, Attribute], ...]]


def fold_constants(graph: Graph) -> Graph:
    """Evaluate all nodes that do not depend on the inputs: `GraphBuilder` folds each node that it emits."""
    return rewrite(graph, lambda _, __: None)


def share_subexpressions(graph: Graph) -> Graph:
    """Compute every common subexpression once; drop unused nodes and constants.

    before: a = x + y; b = y + x; c = a * b        after: a = x + y; c = a * a
    """
    first_constant: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    representative: dict[str, str] = {}
    for name, array in graph.constants.items():
        if array.nbytes <= _SMALL_BYTES:
            # By bytes and not by value: -0.0 equals 0.0 but divides differently, and NaN does not equal itself.
            key = (array.dtype.name, array.shape, array.tobytes())
            representative[name] = first_constant.setdefault(key, name)
    seen: dict[Key, str] = {}

    def convert(builder: GraphBuilder, node: Node) -> str:
        inputs = tuple(representative.get(name, name) for name in node.inputs)
        operands = tuple(sorted(inputs)) if node.op in _COMMUTATIVE else inputs
        # Value numbering: operands are already replaced by their representatives, so equal keys mean equal
        # expressions of any depth.
        key = (node.op, operands, tuple(sorted(node.attrs.items())))
        if key not in seen:
            seen[key] = builder.emit(node.op, inputs, node.attrs, name=node.name, output=node.output)
        return seen[key]

    return rewrite(graph, convert)
