"""Attributes of operators, for tests that want usual ones."""

from retune.compiler.graph.ir import Attribute

CONV: dict[str, Attribute] = {
    "strides": (1, 1),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
    "groups": 1,
    "layout": "NHWC",
}
POOL: dict[str, Attribute] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "layout": "NHWC"}
