"""In: a group of fused nodes. Out: the same value computed in another way.

Always: the group's result stays, and what it reads of other groups; what changes is its nodes, and constants, which are
made of the network's own.

A kind of alternative is a `Rewrite`. Which way is the fastest is a matter of measurement:
`retune.compiler.graph.partition` makes a task of each, and the network is compiled with the one whose record is the
fastest.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from retune.compiler.graph.fuse import FusedOp
from retune.compiler.graph.ir import Array, Graph, Node, Value


@dataclass(frozen=True, slots=True)
class MadeConstant:
    """A constant `value` that `make` makes of the constant `source` when the network is compiled."""

    value: Value
    source: str
    make: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Variant:
    """The nodes that compute a group's result in another way, and the constants that they need; the one at `place` is
    the operator that stands for the group's.
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    made: tuple[MadeConstant, ...]
    place: int

    @property
    def group(self) -> FusedOp:
        """The nodes as a group."""
        return FusedOp(self.nodes, self.place)

    def described(self, graph: Graph) -> Graph:
        """The graph with the new values described; the new constants have a shape and no contents yet."""
        hollow = {
            one.value.name: np.broadcast_to(np.zeros((), one.value.dtype), one.value.shape) for one in self.made
        }
        return self._with(graph, hollow)

    def computed(self, graph: Graph) -> Graph:
        """The graph with the new constants."""
        return self._with(graph, {one.value.name: one.make(graph.constants[one.source]) for one in self.made})

    def _with(self, graph: Graph, constants: dict[str, Array]) -> Graph:
        values = {value.name: value for value in (*self.values, *(one.value for one in self.made))}
        return replace(graph, constants={**graph.constants, **constants}, values={**graph.values, **values})


class Rewrite(Protocol):
    """One kind of alternative; a frozen value without state."""

    @property
    def name(self) -> str:
        """A word that is part of the names of its tasks."""
        ...

    def variant(self, graph: Graph, group: FusedOp) -> Variant | None:
        """The group in another form; None where this kind does not apply or has no prospect."""
        ...

    def is_accurate(self, graph: Graph, group: FusedOp) -> bool:
        """Whether the variant's rounding errors are small with the constants that the group has."""
        ...
