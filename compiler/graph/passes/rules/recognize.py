"""Pattern matching: replaces expressions that exporters write out by the single operator they compute.

An expression is replaced only if no other node reads its intermediate values. Shapes and dtypes stay the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.activations import ACTIVATIONS
from retune.compiler.graph.passes.rules.norms import NORMS
from retune.compiler.graph.passes.rules.patterns import Form, Match, Matcher
from retune.compiler.graph.passes.rules.softmaxes import SOFTMAXES

FORMS: tuple[Form, ...] = (*ACTIVATIONS, *SOFTMAXES, *NORMS)

_Plan = Mapping[str, tuple[Form, Match]]


@dataclass(frozen=True, slots=True)
class Recognize:
    """Replace written-out activations, softmax and normalizations by their operators, at most `rounds` levels deep.

    before: e = exp(sub(x, reduce_max(x))); y = div(e, reduce_sum(e))        after: y = softmax(x)
    """

    name: str = "recognize"
    forms: Sequence[Form] = FORMS
    # A replaced expression may be part of a larger one: log(softmax) takes two rounds, and a third finds nothing and
    # ends.
    rounds: int = 3

    def apply(self, graph: Graph) -> Graph:
        for _ in range(self.rounds):
            plan = self._plan(graph)
            if not plan:
                break
            graph = _carried_out(graph, plan)
        return graph

    def _plan(self, graph: Graph) -> _Plan:
        """The replacement for each node's result; replaced expressions do not overlap, and inner ones come first."""
        matcher = Matcher(graph)
        taken: set[str] = set()
        plan: dict[str, tuple[Form, Match]] = {}
        for node in graph.nodes:
            for form in self.forms:
                match = matcher.find(form.pattern, node)
                if match is not None and taken.isdisjoint({*match.inner, node.output}) and form.fits(match):
                    taken.update(match.inner, (node.output,))
                    plan[node.output] = form, match
                    break
        return plan


def _carried_out(graph: Graph, plan: _Plan) -> Graph:
    now: dict[str, str] = {}

    def convert(builder: GraphBuilder, node: Node) -> str:
        result = ""
        if node.output in plan:
            form, match = plan[node.output]
            values = {name: now.get(value, value) for name, value in match.values.items()}
            leftovers = {name: tuple(now.get(value, value) for value in group) for name, group in match.rest.items()}
            result = form.write(builder, replace(match, values=values, rest=leftovers), node)
            wanted = graph.values[node.output]
            if (builder.value(result).shape, builder.value(result).dtype) != (wanted.shape, wanted.dtype):
                # If the operator has another shape or type, as by a broadcast, the node stays.
                result = ""
        if not result:
            result = builder.emit(node.op, node.inputs, node.attrs, name=node.name, output=node.output)
        now[node.output] = result
        return result

    return rewrite(graph, convert)
