"""Patterns of normalizations as exporters write them; scale and bias stay separate operators after the normalization.

    c / sqrt(mean(c * c) + epsilon), c = x - mean(x)        layer, instance and group norm of PyTorch
    x * s + (bias - mean(x) * s), s = scale / sqrt(…)       layer norm of TensorFlow
    x / sqrt(mean(x * x) + epsilon)                         RMS norm

A factor inside such a form, as in c * (scale / sqrt(…)), becomes a multiplication after the normalization.
"""

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Node
from retune.compiler.graph.passes.rules.patterns import (
    ANY_AXES,
    Capture,
    CaptureAttr,
    Either,
    Match,
    Op,
    Pattern,
    Product,
    RewriteRule,
    Sum,
    Write,
    X,
)

_EPSILON = CaptureAttr("epsilon")


def _mean(x: Pattern) -> Pattern:
    return Op("reduce_mean", (x,), ANY_AXES)


_MEAN = Capture("mean", _mean(X))
_CENTERED = Capture("centred", Op("sub", (X, _MEAN)))
# Both forms of the variance, E[(x - m)^2] and E[x^2] - m^2; the operator computes the first, which does not cancel.
_DEVIATION = Op(
    "sqrt",
    (
        Either(
            (
                Sum((_mean(Product((_CENTERED, _CENTERED))),), _EPSILON),
                Sum((_mean(Product((X, X))), Product((_MEAN, _MEAN), -1.0)), _EPSILON),
            )
        ),
    ),
)
_ROOT_MEAN_SQUARE = Op("sqrt", (Sum((_mean(Product((X, X))),), _EPSILON),))
# The s of TensorFlow's form: both uses must be the same value.
_FACTOR = Capture("factor", Product((), denominators=(_DEVIATION,), others="scale"))


def _write_normalize(*, centred: bool) -> Write:
    def write(builder: GraphBuilder, match: Match, node: Node) -> str:
        attrs = {"axes": match.attrs["axes"], "epsilon": match.attrs["epsilon"], "centred": centred}
        result = builder.emit("normalize", [match.values["x"]], attrs, name=node.name, output=node.output)
        for factor in match.others.get("scale", ()):
            result = builder.emit("mul", [result, factor], name=node.name, output=node.output)
        if "bias" in match.values:
            result = builder.emit("add", [result, match.values["bias"]], name=node.name, output=node.output)
        return result

    return write


NORMS = (
    RewriteRule(Product((_CENTERED,), denominators=(_DEVIATION,), others="scale"), _write_normalize(centred=True)),
    RewriteRule(
        Sum((Product((X, _FACTOR)), Product((_MEAN, _FACTOR), -1.0), Capture("bias"))), _write_normalize(centred=True)
    ),
    RewriteRule(Sum((Product((X, _FACTOR)), Product((_MEAN, _FACTOR), -1.0))), _write_normalize(centred=True)),
    RewriteRule(Product((X,), denominators=(_ROOT_MEAN_SQUARE,), others="scale"), _write_normalize(centred=False)),
)
