"""Alternative computations of a fused group, such as Winograd's for a convolution.

An alternative replaces the nodes of a group and derives constants from the network's. The result of the group and its
inputs from other groups stay the same.

A `Rewrite` is a kind of alternative. `retune.compiler.graph.partition.partition` makes a task of each alternative; the
network is compiled with the one whose record is fastest. Without records, an alternative that is predicted to be much
faster is used.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from retune.compiler.core.target import HardwareParams
from retune.compiler.graph.ir import Array, Graph, Node, Value
from retune.compiler.graph.partition.fuse import FusedOp


@dataclass(frozen=True, slots=True)
class DerivedConstant:
    """A constant of an alternative, computed when the network is compiled.

    `value` describes it; `make` computes it from the network's constant `source`.
    """

    value: Value
    source: str
    make: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way to compute the result of a group.

    `nodes` have the results `values` and need the constants `made`; `anchor` is the index of the anchor operator's
    node.
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    made: tuple[DerivedConstant, ...]
    anchor: int

    @property
    def group(self) -> FusedOp:
        return FusedOp(self.nodes, self.anchor)

    def declare(self, graph: Graph) -> Graph:
        """The graph with the new values, and new constants without contents."""
        # Strides of 0: the description needs shapes only, and transformed weights of a network may have hundreds of MB.
        constants = {
            constant.value.name: np.broadcast_to(np.zeros((), constant.value.dtype), constant.value.shape)
            for constant in self.made
        }
        return self._with(graph, constants)

    def compute(self, graph: Graph) -> Graph:
        """The graph with the new values and constants."""
        return self._with(
            graph, {constant.value.name: constant.make(graph.constants[constant.source]) for constant in self.made}
        )

    def _with(self, graph: Graph, constants: dict[str, Array]) -> Graph:
        values = {value.name: value for value in (*self.values, *(constant.value for constant in self.made))}
        return replace(graph, constants={**graph.constants, **constants}, values={**graph.values, **values})


class Rewrite(Protocol):
    """A kind of alternative: a stateless value."""

    @property
    def name(self) -> str:
        """Part of the names of its tasks."""

    def variant(self, graph: Graph, group: FusedOp) -> Variant | None:
        """The group in another form; None if the rewrite does not apply or has no prospect."""

    def is_accurate(self, graph: Graph, group: FusedOp) -> bool:
        """Whether the variant's rounding errors are small with the group's constants."""

    def speedup(self, graph: Graph, group: FusedOp, hardware: HardwareParams) -> float:
        """Predicted speedup of the variant over the group, in default schedules, for groups with a variant."""
