"""What is left of a transformer's layer: a few kernels."""

from typing import Any

import numpy as np
import pytest

from compiler.graph.evaluate import evaluate
from compiler.graph.fuse import fuse
from compiler.graph.pipeline import optimize
from tests.encoder_layer import encoder_layer

PROJECTION = "dense+add"
BERT = [
    *[PROJECTION] * 3,
    "transpose",
    "contract+mul+add",
    "softmax",
    "contract",
    "dense+add+add",
    "normalize+mul+add",
    "dense+add+gelu",
    "dense+add+add",
    "normalize+mul+add",
]
VISION = [
    "normalize+mul+add",
    *[PROJECTION] * 3,
    "transpose",
    "contract+mul",
    "softmax",
    "contract",
    "dense+add+add",
    "normalize+mul+add",
    "dense+add+gelu",
    "dense+add+add",
]


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("options", "wanted"), [({}, BERT), ({"masked": False, "norm_first": True}, VISION)])
def test_the_kernels_of_an_encoder_layer(options: dict[str, Any], wanted: list[str], joint: bool) -> None:
    graph = encoder_layer(joint=joint, **options)
    best = optimize(graph)
    rng = np.random.default_rng(1)
    feed = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in graph.inputs}
    (ours,), (theirs,) = evaluate(best, feed), evaluate(graph, feed)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert sorted("+".join(node.op for node in group.nodes) for group in fuse(best).groups) == sorted(wanted)
