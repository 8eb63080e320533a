"""A rewrite pattern and the operator that replaces its matches."""

from collections.abc import Callable
from dataclasses import dataclass

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Node
from retune.compiler.graph.passes.patterns import Match, Named, Pattern

Write = Callable[[GraphBuilder, Match, Node], str]

X = Named("x")
"""The operator's argument, in every pattern."""


def _always(match: Match) -> bool:
    del match
    return True


@dataclass(frozen=True, slots=True)
class Form:
    """A rewrite pattern: `pattern` is the expression to match, and `write` emits the value that replaces its result.

    `fits` rejects matches that no operator can express.
    """

    pattern: Pattern
    write: Write
    fits: Callable[[Match], bool] = _always


def unary(op: str) -> Write:
    def write(builder: GraphBuilder, match: Match, node: Node) -> str:
        return builder.emit(op, [match.values["x"]], name=node.name, output=node.output)

    return write
