"""Applies rewrite rules to every node, in order, until none changes anything.

A rule takes the builder and a node and returns the value that replaces the node's result, or None.
"""

from collections.abc import Callable, Sequence
from functools import partial

from retune.compiler.graph.builder import GraphBuilder, rewrite, rewrite_until_stable
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.arithmetic_rules import ARITHMETIC_RULES
from retune.compiler.graph.passes.rules.layout_rules import LAYOUT_RULES, transpose_to_reshape
from retune.compiler.graph.passes.rules.scatter_rules import SCATTER_RULES

Rule = Callable[[GraphBuilder, Node], str | None]

_RULES: tuple[Rule, ...] = (*ARITHMETIC_RULES, *SCATTER_RULES, *LAYOUT_RULES)

# More means rules that undo each other.
_ROUNDS = 20
"""A round moves a layout change past at least one node, so chains settle in a few rounds."""


def simplify(graph: Graph) -> Graph:
    """Apply the rules of arithmetic, and those that move transposes toward each other, to every node."""
    return _apply(graph, _RULES)


def settle(graph: Graph) -> Graph:
    """Turn the transposes that `simplify` leaves into reshapes where possible, and simplify again."""
    return _apply(graph, (transpose_to_reshape, *_RULES))


def _apply(graph: Graph, rules: Sequence[Rule]) -> Graph:
    def convert(builder: GraphBuilder, node: Node) -> str | None:
        return next((result for rule in rules if (result := rule(builder, node)) is not None), None)

    return rewrite_until_stable(graph, partial(rewrite, convert=convert), _ROUNDS)
