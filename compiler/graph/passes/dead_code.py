"""In: any graph. Out: the graph without what no output needs, equal nodes and small equal constants merged."""

from dataclasses import dataclass

from compiler.graph.builder import GraphBuilder, rewrite
from compiler.graph.ir import Attribute, Graph, Node

_SMALL_BYTES = 4096

Key = tuple[str, tuple[str, ...], tuple[tuple[str, Attribute], ...]]


@dataclass(frozen=True, slots=True)
class DeadCode:
    """Drop unused nodes and constants; compute every common sub-expression once."""

    name: str = "dead_code"

    def apply(self, graph: Graph) -> Graph:
        """The smaller graph."""
        first_constant: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        representative: dict[str, str] = {}
        for name, array in graph.constants.items():
            if array.nbytes <= _SMALL_BYTES:
                key = (array.dtype.name, array.shape, array.tobytes())
                representative[name] = first_constant.setdefault(key, name)
        seen: dict[Key, str] = {}

        def convert(builder: GraphBuilder, node: Node) -> str:
            inputs = tuple(representative.get(name, name) for name in node.inputs)
            key = (node.op, inputs, tuple(sorted(node.attrs.items())))
            if key not in seen:
                seen[key] = builder.emit(node.op, inputs, node.attrs, name=node.name, output=node.output)
            return seen[key]

        return rewrite(graph, convert)
