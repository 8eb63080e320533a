"""Applies rewrite rules to every node, in order, until none changes anything.

A rule takes the builder and a node and returns the value that replaces the node's result, or None.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.arithmetic_rules import ARITHMETIC_RULES
from retune.compiler.graph.passes.rules.constant_scatter import invert_scatter
from retune.compiler.graph.passes.rules.layout_rules import LAYOUT_RULES, transpose_to_reshape

_log = logging.getLogger(__name__)

Rule = Callable[[GraphBuilder, Node], str | None]

SINKING_RULES: tuple[Rule, ...] = (*ARITHMETIC_RULES, invert_scatter, *LAYOUT_RULES)
SETTLING_RULES: tuple[Rule, ...] = (transpose_to_reshape, *SINKING_RULES)


@dataclass(frozen=True, slots=True)
class Simplify:
    """Apply `rules` to every node, for at most `rounds` rounds.

    `SINKING_RULES` move transposes toward each other. `SETTLING_RULES`, applied afterwards, turn the remaining ones
    into reshapes.
    """

    name: str = "simplify"
    rules: tuple[Rule, ...] = field(default=SINKING_RULES, repr=False)
    # A round moves a layout change past at least one node, so chains settle in a few rounds; more means rules that undo
    # each other.
    rounds: int = 20

    def apply(self, graph: Graph) -> Graph:
        before = ""
        for _ in range(self.rounds):
            # The text shows a fixpoint: rules rebuild nodes, so identity says nothing.
            after = str(graph)
            if after == before:
                return graph
            before = after
            graph = rewrite(graph, self._first_rule)
        _log.warning("%s: the rules still change something after %d rounds", graph.name, self.rounds)
        return graph

    def _first_rule(self, builder: GraphBuilder, node: Node) -> str | None:
        for rule in self.rules:
            result = rule(builder, node)
            if result is not None:
                return result
        return None
