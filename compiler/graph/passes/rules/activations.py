"""Patterns of activation functions as exporters write them; each replacement is exact up to rounding.

gelu        x * (1 + erf(x / sqrt(2))) / 2                              PyTorch, and TensorFlow's exact form
gelu_tanh   x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2     GPT-2, TensorFlow's approximation
silu        x * sigmoid(x), x / (1 + exp(-x))
hard_swish  x * clip(x + 3, 0, 6) / 6, x * clip(x / 6 + 1 / 2, 0, 1)
"""

from math import pi, sqrt

from retune.compiler.graph.passes.rules.patterns import (
    Capture,
    Either,
    Op,
    Pattern,
    Product,
    RewriteRule,
    Sum,
    X,
    unary,
)

_ERF = Op("erf", (Product((X,), sqrt(0.5)),))
_HALF = Capture("half", Product((X,), 0.5))
# Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
_CUBE = 0.044715


def _cubic(scale: float) -> Pattern:
    """scale * (x + 0.044715 * x^3) in each of its factorizations."""
    return Either(
        (
            Product((Sum((X, Product((X, X, X), _CUBE))),), scale),
            Product((X, Sum((Product((X, X), _CUBE),), 1.0)), scale),
            Sum((Product((X,), scale), Product((X, X, X), scale * _CUBE))),
        )
    )


_GELU = Either(
    (
        Product((X, Sum((_ERF,), 1.0)), 0.5),
        Product((X, Sum((Product((_ERF,), 0.5),), 0.5))),
        Sum((Product((X,), 0.5), Product((X, _ERF), 0.5))),
        Sum((_HALF, Product((_HALF, _ERF)))),
    )
)
_GELU_TANH = Either(
    (
        Product((X, Sum((Op("tanh", (_cubic(sqrt(2 / pi)),)),), 1.0)), 0.5),
        Product((X, Sum((Product((Op("tanh", (_cubic(sqrt(2 / pi)),)),), 0.5),), 0.5))),
        Product((X, Op("sigmoid", (_cubic(2 * sqrt(2 / pi)),)))),
    )
)
_ONE_AND_POWER = Sum((Op("exp", (Product((X,), -1.0),)),), 1.0)
_HARD_SWISH = Either(
    (
        Product((X, Op("clip", (Sum((X,), 3.0),), {"low": 0.0, "high": 6.0})), 1 / 6),
        Product((X, Op("clip", (Sum((Product((X,), 1 / 6),), 0.5),), {"low": 0.0, "high": 1.0}))),
    )
)

ACTIVATIONS = (
    RewriteRule(_GELU, unary("gelu")),
    RewriteRule(_GELU_TANH, unary("gelu_tanh")),
    RewriteRule(Product((X, Op("sigmoid", (X,)))), unary("silu")),
    RewriteRule(Product((X,), denominators=(_ONE_AND_POWER,)), unary("silu")),
    RewriteRule(Product((), denominators=(_ONE_AND_POWER,)), unary("sigmoid")),
    RewriteRule(_HARD_SWISH, unary("hard_swish")),
)
