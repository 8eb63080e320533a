"""In: a graph. Out: another one. Always: a pass has a name to blame and its options as fields."""

from typing import Protocol

from retune.compiler.graph.ir import Graph


class GraphPass(Protocol):
    """A named rewrite of whole graphs that keeps their meaning."""

    @property
    def name(self) -> str:
        """What messages call the pass."""

    def apply(self, graph: Graph) -> Graph:
        """The rewritten graph; `graph` itself is unchanged."""
