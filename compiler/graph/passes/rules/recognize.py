"""Pattern matching: replaces expressions that exporters write out by the single operator they compute.

An expression is replaced only if no other node reads its intermediate values. Shapes and dtypes stay the same.
"""

from collections.abc import Mapping
from dataclasses import replace

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.activations import ACTIVATIONS
from retune.compiler.graph.passes.rules.norms import NORMS
from retune.compiler.graph.passes.rules.patterns import Match, Matcher, RewriteRule
from retune.compiler.graph.passes.rules.softmaxes import SOFTMAXES

REWRITE_RULES: tuple[RewriteRule, ...] = (*ACTIVATIONS, *SOFTMAXES, *NORMS)

_Plan = Mapping[str, tuple[RewriteRule, Match]]


# A replaced expression may be part of a larger one: log(softmax) takes two rounds, and a third finds nothing and ends.
_ROUNDS = 3


def recognize(graph: Graph) -> Graph:
    """Replace written-out activations, softmax and normalizations by their operators.

    before: e = exp(sub(x, reduce_max(x))); y = div(e, reduce_sum(e))        after: y = softmax(x)
    """
    for _ in range(_ROUNDS):
        plan = _plan(graph)
        if not plan:
            break
        graph = _apply_plan(graph, plan)
    return graph


def _plan(graph: Graph) -> _Plan:
    """The replacement for each node's result; replaced expressions do not overlap, and inner ones come first."""
    matcher = Matcher(graph)
    matched: set[str] = set()
    plan: dict[str, tuple[RewriteRule, Match]] = {}
    for node in graph.nodes:
        for rule in REWRITE_RULES:
            match = matcher.find(rule.pattern, node)
            if match is not None and matched.isdisjoint({*match.inner, node.output}) and rule.fits(match):
                matched.update(match.inner, (node.output,))
                plan[node.output] = rule, match
                break
    return plan


def _apply_plan(graph: Graph, plan: _Plan) -> Graph:
    renamed: dict[str, str] = {}

    def convert(builder: GraphBuilder, node: Node) -> str:
        result = ""
        if node.output in plan:
            rule, match = plan[node.output]
            values = {name: renamed.get(value, value) for name, value in match.values.items()}
            others = {name: tuple(renamed.get(value, value) for value in group) for name, group in match.others.items()}
            result = rule.write(builder, replace(match, values=values, others=others), node)
            before = graph.values[node.output]
            if (builder.value(result).shape, builder.value(result).dtype) != (before.shape, before.dtype):
                # If the operator has another shape or type, as by a broadcast, the node stays.
                result = ""
        if not result:
            result = builder.emit(node.op, node.inputs, node.attrs, name=node.name, output=node.output)
        renamed[node.output] = result
        return result

    return rewrite(graph, convert)
