"""Scales and shifts beside convolutions and products go into their weights, and only where nobody else reads them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.passes.fold_scales import fold_scales
from retune.compiler.graph.verify import verify

CONV: dict[str, Attribute] = {"strides": (1, 1), "dilations": (1, 1), "layout": "NCHW"}


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def folded(graph: Graph) -> list[str]:
    """The operators that are left, of a graph that still computes the same."""
    changed = fold_scales(graph)
    verify(changed)
    feed = {value.name: floats(*value.shape) for value in graph.inputs}
    for ours, theirs in zip(evaluate(changed, feed), evaluate(graph, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * max(10.0, float(np.abs(theirs).max())))
    return [node.op for node in changed.nodes]


def product(b: GraphBuilder, kind: str, x: str) -> str:
    """A product of one of the kinds, with constant weights."""
    channels = b.value(x).shape[1]
    if kind == "dense":
        return b.emit("dense", [x, b.constant(floats(channels, 6))])
    groups = {"conv": 1, "padded": 1, "grouped": 2, "depthwise": channels}[kind]
    pads = (1, 1, 1, 1) if kind == "padded" else (0, 0, 0, 0)
    weight = b.constant(floats(2 * channels, channels // groups, 3, 3))
    return b.emit("conv2d", [x, weight], {**CONV, "pads": pads, "groups": groups})


def per_channel(b: GraphBuilder, kind: str, x: str, *, single: bool = False) -> str:
    channels = b.value(x).shape[1]
    shape = () if single else (channels,) if kind == "dense" else (channels, 1, 1)
    return b.constant(floats(*shape) + np.float32(2))


def start(kind: str) -> GraphBuilder:
    return GraphBuilder("g", [Value("x", (3, 4) if kind == "dense" else (2, 4, 6, 5))])


KINDS = ("dense", "conv", "padded", "grouped", "depthwise")


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_scales_and_shifts_around_a_product(kind: str, data: st.DataObject) -> None:
    b = start(kind)

    def chain(x: str) -> tuple[str, list[str]]:
        steps = data.draw(st.lists(st.sampled_from(["mul", "add"]), max_size=3))
        for op in steps:
            x = b.emit(op, [x, per_channel(b, kind, x, single=data.draw(st.booleans()))])
        return x, steps

    x, before = chain("x")
    y, after = chain(product(b, kind, x))
    left = folded(b.finish({"y": b.emit("relu", [y])}))
    assert "mul" not in left[left.index("dense" if kind == "dense" else "conv2d") :]
    if kind != "padded" or "add" not in before:
        assert left[0] == ("dense" if kind == "dense" else "conv2d")
    assert left.count("add") <= before.count("add") + after.count("add")
