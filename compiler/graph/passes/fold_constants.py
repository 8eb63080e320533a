"""Constant folding: evaluates every node whose operands are all constants, by `graph.evaluate`."""

from dataclasses import dataclass

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """Evaluate all nodes that do not depend on the inputs; `GraphBuilder` folds each node it emits."""

    name: str = "fold_constants"

    def apply(self, graph: Graph) -> Graph:
        return rewrite(graph, _keep)


def _keep(builder: GraphBuilder, node: Node) -> None:
    del builder, node
