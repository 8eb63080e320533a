"""Patterns of softmax and log-softmax as exporters write them.

A pattern must subtract the maximum, as the operator does: otherwise the operator would be more accurate than the
expression, not equal to it.
"""

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Node
from retune.compiler.graph.passes.rules.patterns import (
    ANY_AXES,
    Capture,
    CaptureAttr,
    Match,
    Op,
    Pattern,
    Product,
    RewriteRule,
    Sum,
    Write,
    X,
)

_MAX = Op("reduce_max", (X,), ANY_AXES)
_SHIFTED = Capture("shifted", Op("sub", (X, _MAX)))
_POWER = Capture("power", Op("exp", (Op("sub", (X, _MAX)),)))
_PEAK = Capture("peak", _MAX)


def _sum(powers: Pattern) -> Pattern:
    return Op("reduce_sum", (powers,), ANY_AXES)


_LOG_OF_SUM = Op("log", (_sum(Op("exp", (Op("sub", (X, _PEAK)),))),))


def _one_axis(match: Match) -> bool:
    axes = match.attrs["axes"]
    return isinstance(axes, tuple) and len(axes) == 1


def _along(op: str) -> Write:
    def write(builder: GraphBuilder, match: Match, node: Node) -> str:
        axes = match.attrs["axes"]
        axis = axes[0] if isinstance(axes, tuple) else axes
        return builder.emit(op, [match.values["x"]], {"axis": axis}, name=node.name, output=node.output)

    return write


SOFTMAXES = (
    RewriteRule(Product((_POWER,), denominators=(_sum(_POWER),)), _along("softmax"), _one_axis),
    RewriteRule(Op("sub", (_SHIFTED, Op("log", (_sum(Op("exp", (_SHIFTED,))),)))), _along("log_softmax"), _one_axis),
    RewriteRule(Sum((X, Product((_PEAK,), -1.0), Product((_LOG_OF_SUM,), -1.0))), _along("log_softmax"), _one_axis),
    RewriteRule(Op("log", (Op("softmax", (X,), {"axis": CaptureAttr("axes")}),)), _along("log_softmax")),
)
