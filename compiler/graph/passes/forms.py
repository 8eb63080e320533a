"""In: a pattern that was found. Out: the operator that it amounts to. Always: a form is data and one function."""

from collections.abc import Callable
from dataclasses import dataclass

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Node
from retune.compiler.graph.passes.patterns import Match, Named, Pattern

Write = Callable[[GraphBuilder, Match, Node], str]

X = Named("x")
"""What the operator is applied to, in every pattern."""


def _always(match: Match) -> bool:
    del match
    return True


@dataclass(frozen=True, slots=True)
class Form:
    """An expression, and what to write in its place: `write` returns the value that replaces the node's result.

    `fits` refuses matches that no operator is for.
    """

    pattern: Pattern
    write: Write
    fits: Callable[[Match], bool] = _always


def unary(op: str) -> Write:
    """Writes an operator of `x` without attributes."""

    def write(builder: GraphBuilder, match: Match, node: Node) -> str:
        return builder.emit(op, [match.values["x"]], name=node.name, output=node.output)

    return write
