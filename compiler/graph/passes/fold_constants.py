"""In: any graph. Out: the graph with every node that reads constants alone evaluated. Always: by `graph.evaluate`."""

from dataclasses import dataclass

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """Evaluate what does not depend on the inputs; the builder does so with whatever it is given."""

    name: str = "fold_constants"

    def apply(self, graph: Graph) -> Graph:
        """The folded graph."""
        return rewrite(graph, _keep)


def _keep(builder: GraphBuilder, node: Node) -> None:
    del builder, node
