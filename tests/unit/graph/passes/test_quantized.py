"""The pass that computes in bytes: what it makes of a residual block, and that graphs keep their meaning."""

import numpy as np
import pytest

from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.passes.quantized import compute_quantized
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.verify import verify
from tests.support.quantized_networks import Network, residual_block


def assert_same(changed: Graph, graph: Graph, quantum: float) -> None:
    """Equal up to one quantum in one element of a hundred."""
    verify(changed)
    feed = {v.name: np.random.default_rng(8).standard_normal(v.shape, dtype=np.float32) * 3 for v in graph.inputs}
    for ours, theirs in zip(evaluate(changed, feed), evaluate(graph, feed), strict=True):
        apart = np.abs(ours - theirs) / quantum
        assert apart.max() < 1.01
        assert (apart > 0.01).mean() <= 0.01
        assert len(np.unique(theirs)) > 5


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_the_kernels_of_a_block_read_and_write_bytes() -> None:
    graph = optimize(residual_block())
    groups = fuse(graph).groups
    products = [group for group in groups if group.nodes[0].op == "qconv2d"]
    assert len(products) == 4
    for group in groups:
        if group.nodes[0].op not in ("transpose", "add") and group is not products[-1]:
            assert graph.values[group.output].dtype == "uint8"
    residual = products[2]
    inside = {node.output for node in residual.nodes}
    outside = {name for node in residual.nodes for name in node.inputs} - inside - set(graph.constants)
    assert {graph.values[name].dtype for name in outside} == {"uint8"}


@pytest.mark.parametrize("zero", [0, 3, -100])
def test_zero_points_of_weights_join_them_where_the_result_is_a_byte(zero: int) -> None:
    net = Network(1, 4, 5, 5)
    graph = net.builder.finish({"y": net.stored(net.conv(net.stored("x", 0.05, 9), 4, 4, 3, 3, zero=zero), 0.3, 7)})
    changed = compute_quantized(graph)
    assert_same(changed, graph, 0.3)
    assert ("qconv2d" in _ops(changed)) == (abs(zero) < 100)


def test_pools_and_moves_work_on_bytes() -> None:
    net = Network(2, 4, 6, 6)
    b = net.builder
    x = net.stored("x", 0.05, 128)
    pool: dict[str, Attribute] = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    y = net.stored(b.emit("max_pool2d", [x], {**pool, "layout": "NCHW"}), 0.05, 128)
    y = net.stored(b.emit("reshape", [y], {"shape": (2, 36)}), 0.05, 128)
    weight = b.constant(net.rng.integers(-9, 9, (36, 8)).astype(np.int8), "w")
    scale, zero = b.constant(np.full(8, 0.1, np.float32), "s"), b.constant(np.zeros(8, np.int8), "z")
    w = b.emit("dequantize", [weight, scale, zero], {"axis": 1})
    graph = b.finish({"y": net.stored(b.emit("dense", [y, w]), 0.2, 128)})
    changed = compute_quantized(graph)
    assert_same(changed, graph, 0.2)
    reads = {node.op: changed.values[node.inputs[0]].dtype for node in changed.nodes}
    assert reads["max_pool2d"] == reads["reshape"] == reads["qdense"] == "uint8"
    assert _ops(changed).count("saturate") == _ops(changed).count("round") == 1


@pytest.mark.parametrize(("largest", "joins"), [(2**20, True), (2**31 - 1, False)])
def test_a_bias_joins_the_integer_sum_only_where_that_cannot_overflow(largest: int, joins: bool) -> None:
    # Quantizers clip the bias of a channel of tiny weights to the largest int32.
    net = Network(2, 4)
    b = net.builder
    weight = b.constant(np.full((4, 3), 100, np.uint8), "w")
    w = b.emit("dequantize", [weight, *net.parameters(0.5, 0)], {"axis": 0})
    numbers = b.constant(np.array([largest, -largest, 7], np.int32), "b")
    scale, zero = b.constant(np.full(3, 0.25, np.float32), "s"), b.constant(np.zeros(3, np.int32), "z")
    bias = b.emit("dequantize", [numbers, scale, zero], {"axis": 0})
    graph = b.finish({"y": b.emit("add", [b.emit("dense", [net.stored("x", 0.5, 0), w]), bias])})
    changed = compute_quantized(graph)
    feed = {"x": np.full((2, 4), 100, np.float32)}
    for ours, theirs in zip(evaluate(changed, feed), evaluate(graph, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert (_ops(changed)[-1] == "rounded_mul") == joins


@pytest.mark.parametrize("scale", [0.5, -0.5])
def test_a_pool_moves_to_the_bytes_only_where_the_scale_keeps_their_order(scale: float) -> None:
    net = Network(1, 4, 6, 6)
    b = net.builder
    pool: dict[str, Attribute] = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    y = b.emit("max_pool2d", [net.stored("x", scale, 9)], {**pool, "layout": "NCHW"})
    graph = b.finish({"y": y})
    changed = compute_quantized(graph)
    assert_same(changed, graph, 0.5)
    moved = {changed.values[node.inputs[0]].dtype for node in changed.nodes if node.op == "max_pool2d"} == {"uint8"}
    assert moved == (scale > 0)
