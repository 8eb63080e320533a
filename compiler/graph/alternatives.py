"""Alternative computations of a fused group, such as Winograd's for a convolution.

An alternative replaces the nodes of a group and computes constants of its own from the network's. The result of the
group and its inputs from other groups stay the same.

A kind of alternative is a `Rewrite`. Measurement decides which one is the fastest: `retune.compiler.graph.partition`
makes a task of each, and the network is compiled with the one whose record is the fastest. Where none was measured, one
that is predicted to be much faster is used.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from retune.compiler.graph.fuse import FusedOp
from retune.compiler.graph.ir import Array, Graph, Node, Value
from retune.compiler.target import HardwareParams


@dataclass(frozen=True, slots=True)
class MadeConstant:
    """A constant that an alternative needs, computed when the network is compiled.

    `value` describes it, `source` names the network's constant it is computed from, and `make` computes it.
    """

    value: Value
    source: str
    make: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Variant:
    """The nodes that compute the result of a group in another way.

    `values` describes their results, `made` are the constants they need, and `place` is the index of the node that is
    the group's anchor operator.
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
        # Strides of 0: a description needs shapes alone, and transformed weights of a network may have hundreds of MB.
        hollow = {one.value.name: np.broadcast_to(np.zeros((), one.value.dtype), one.value.shape) for one in self.made}
        return self._with(graph, hollow)

    def computed(self, graph: Graph) -> Graph:
        """The graph with the new constants."""
        return self._with(graph, {one.value.name: one.make(graph.constants[one.source]) for one in self.made})

    def _with(self, graph: Graph, constants: dict[str, Array]) -> Graph:
        values = {value.name: value for value in (*self.values, *(one.value for one in self.made))}
        return replace(graph, constants={**graph.constants, **constants}, values={**graph.values, **values})


class Rewrite(Protocol):
    """One kind of alternative: an immutable value without state."""

    @property
    def name(self) -> str:
        """A word that is part of the names of its tasks."""

    def variant(self, graph: Graph, group: FusedOp) -> Variant | None:
        """The group in another form; None where this kind does not apply or has no prospect."""

    def is_accurate(self, graph: Graph, group: FusedOp) -> bool:
        """Whether the variant's rounding errors are small with the constants that the group has."""

    def speedup(self, graph: Graph, group: FusedOp, hardware: HardwareParams) -> float:
        """How many times as fast as the group the variant is expected to be, both in their default schedules. Only for
        groups that have a variant.
        """
