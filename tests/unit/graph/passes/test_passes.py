"""Constant folding, dead code, batch norm and channels-last, each on a graph made for it."""

from typing import Any

import numpy as np
import pytest

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Node, Value
from retune.compiler.graph.passes.channels_last import ChannelsLast
from retune.compiler.graph.passes.common_subexpressions import CommonSubexpressions
from retune.compiler.graph.passes.fold_batch_norm import FoldBatchNorm
from retune.compiler.graph.passes.fold_constants import FoldConstants
from retune.compiler.graph.passes.fold_scales import FoldScales
from retune.compiler.graph.verify import verify

CONV: dict[str, Attribute] = {
    "strides": (2, 1),
    "pads": (1, 0, 1, 1),
    "dilations": (1, 1),
    "groups": 1,
    "layout": "NCHW",
}


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def assert_same(changed: Graph, graph: Graph) -> None:
    verify(changed)
    assert (changed.inputs, changed.outputs) == (graph.inputs, graph.outputs)
    feed = {value.name: floats(*value.shape) for value in graph.inputs}
    for ours, theirs in zip(evaluate(changed, feed), evaluate(graph, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_constants_fold() -> None:
    x, w, values = Value("x", (2,)), Value("w", (2,)), ("e", "y")
    nodes = (Node("exp", ("w",), ("e",)), Node("add", ("x", "e"), ("y",)))
    described = {v.name: v for v in (x, w, *(Value(name, (2,)) for name in values))}
    graph = Graph("g", (x,), ("y",), nodes, {"w": floats(2)}, described)
    folded = FoldConstants().apply(graph)
    assert_same(folded, graph)
    assert ops(folded) == ["add"]


def test_common_subexpressions_are_computed_once() -> None:
    b = GraphBuilder("g", [Value("x", (2, 3))])
    first = b.emit("add", ["x", b.constant(np.ones(3, np.float32))])
    second = b.emit("add", ["x", b.constant(np.ones(3, np.float32))])
    third = b.emit("add", ["x", b.constant(np.zeros(3, np.float32))])
    graph = b.finish({"y": b.emit("mul", [b.emit("mul", [first, second]), third])})
    merged = CommonSubexpressions().apply(graph)
    assert_same(merged, graph)
    assert ops(merged) == ["add", "add", "mul", "mul"]
    assert len(merged.constants) == 2


def normalised(b: GraphBuilder, x: str) -> str:
    channels = b.value(x).shape[1]
    parts = [floats(channels), floats(channels) + 1, floats(channels), np.abs(floats(channels)) + np.float32(0.5)]
    return b.emit("batch_norm", [x, *(b.constant(part) for part in parts)], {"axis": 1, "epsilon": 1e-5})


def test_batch_norm_goes_into_a_convolution() -> None:
    b = GraphBuilder("g", [Value("x", (1, 3, 6, 6))])
    graph = b.finish({"y": normalised(b, b.emit("conv2d", ["x", b.constant(floats(4, 3, 3, 3))], CONV))})
    folded = FoldScales().apply(FoldBatchNorm().apply(graph))
    assert_same(folded, graph)
    assert ops(folded) == ["conv2d", "add"]


def test_batch_norm_goes_through_a_bias_into_a_product() -> None:
    b = GraphBuilder("g", [Value("x", (2, 5))])
    product = b.emit("dense", ["x", b.constant(floats(5, 3))])
    graph = b.finish({"y": normalised(b, b.emit("add", [product, b.constant(floats(3))]))})
    folded = FoldScales().apply(FoldBatchNorm().apply(graph))
    assert_same(folded, graph)
    assert ops(folded) == ["dense", "add"]


@pytest.mark.parametrize("reader", ["result", "convolution"])
def test_weights_that_others_use_are_left_alone(reader: str) -> None:
    b = GraphBuilder("g", [Value("x", (1, 3, 6, 6))])
    product = b.emit("conv2d", ["x", b.constant(floats(4, 3, 3, 3))], CONV)
    biased = b.emit("add", [product, b.constant(floats(1, 4, 1, 1))])
    other = biased if reader == "result" else product
    graph = b.finish({"y": normalised(b, biased), "z": b.emit("relu", [other])})
    folded = FoldScales().apply(FoldBatchNorm().apply(graph))
    assert_same(folded, graph)
    assert ops(folded) == ["conv2d", "add", "mul", "add", "relu"]


def test_channels_last_moves_weights() -> None:
    b = GraphBuilder("g", [Value("x", (1, 4, 7, 7))])
    dense = b.emit("conv2d", ["x", b.constant(floats(6, 4, 3, 3), "w")], CONV)
    deep = b.emit("conv2d", [dense, b.constant(floats(6, 1, 2, 2), "d")], {**CONV, "groups": 6})
    twice = b.emit("conv2d", [deep, b.constant(floats(12, 1, 2, 2), "t")], {**CONV, "groups": 6})
    pool: dict[str, Attribute] = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "layout": "NCHW"}
    graph = b.finish({"y": b.emit("avg_pool2d", [twice], {**pool, "count_include_pad": False})})
    moved = ChannelsLast().apply(graph)
    assert_same(moved, graph)
    assert {name: array.shape for name, array in moved.constants.items()} == {
        "w_hwio": (3, 3, 4, 6),
        "d_hwc": (2, 2, 6),
        "t_hwio": (2, 2, 1, 12),
    }
    assert all(node.text("layout") == "NHWC" for node in moved.nodes if node.op != "transpose")
