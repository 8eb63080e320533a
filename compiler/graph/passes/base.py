"""The interface of graph passes: a name for error messages, options as fields, and `apply`."""

from typing import Protocol

from retune.compiler.graph.ir import Graph


class GraphPass(Protocol):
    """A named rewrite of whole graphs that keeps their meaning."""

    @property
    def name(self) -> str: ...

    def apply(self, graph: Graph) -> Graph:
        """The rewritten graph; `graph` itself is unchanged."""
