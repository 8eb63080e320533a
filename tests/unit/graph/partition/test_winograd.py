"""Winograd as an alternative: where it is offered, what it makes of a graph, and how accurate it is."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from retune.compiler.core.dtype import HALVES
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate, evaluate_node
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.partition.fuse import FusedOp, fuse
from retune.compiler.graph.partition.partition import Partition, partition, with_alternatives
from retune.compiler.graph.partition.winograd import WINOGRAD, Winograd
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.te.evaluate import evaluate as evaluate_tensors
from tests.support.attributes import CONV
from tests.support.winograd_network import network


def cut(graph: Graph, rewrites: tuple[Winograd, ...] = WINOGRAD) -> Partition:
    return partition(graph, Target.host(), HardwareParams(num_cores=2), rewrites)


def offered(graph: Graph) -> list[str]:
    return [one.task.name for one in cut(graph).alternatives]


def test_each_layer_has_its_alternatives_beside_it() -> None:
    parts = cut(network())
    assert [[task.name for task in layer.tasks] for layer in parts.layers()] == [
        [
            "conv2d_3x3_c16_1x14x14x16_add_relu",
            "winograd4_conv2d_3x3_c16_1x14x14x16_add_relu",
            "winograd2_conv2d_3x3_c16_1x14x14x16_add_relu",
        ],
        [
            "conv2d_3x3_c16_1x14x14x16_add_add_relu",
            "winograd4_conv2d_3x3_c16_1x14x14x16_add_add_relu",
            "winograd2_conv2d_3x3_c16_1x14x14x16_add_add_relu",
        ],
    ]
    assert len({task.workload_key for layer in parts.layers() for task in layer.tasks}) == 6


def test_a_group_keeps_the_operator_that_it_grew_from() -> None:
    builder = GraphBuilder("joined", [Value(name, (1, 28, 28, 16)) for name in ("a", "b")])
    kernel = builder.constant(np.ones((3, 3, 32, 16), np.float32), "w")
    joined = builder.emit("concat", ("a", "b"), {"axis": 3})
    graph = builder.finish({"y": builder.emit("conv2d", (joined, kernel), CONV)})
    group = FusedOp(graph.nodes, 1)
    for rewrite in WINOGRAD:
        variant = rewrite.variant(graph, group)
        assert variant is not None
        assert (group.core.op, variant.group.core.op) == ("conv2d", "winograd_conv2d")


@pytest.mark.parametrize(
    ("graph", "tiles"),
    [
        (network(56), ["winograd4"]),
        (network(28), ["winograd4", "winograd2"]),
        (network(7), ["winograd2"]),
        (network(7, batch=4), ["winograd4", "winograd2"]),
        (network(5), []),
        (network(28, channels=8), []),
        (network(28, dilations=(2, 2), pads=(2, 2, 2, 2)), []),
    ],
)
def test_it_is_offered_where_it_may_pay(graph: Graph, tiles: list[str]) -> None:
    assert [name.partition("_")[0] for name in offered(graph)] == tiles * 2


def test_other_convolutions_have_none() -> None:
    builder = GraphBuilder("net", [Value("x", (1, 28, 28, 32)), Value("w", (3, 3, 32, 32))])
    fed = builder.emit("conv2d", ("x", "w"), CONV)
    strided = builder.constant(np.ones((3, 3, 32, 32), np.float32), "s")
    halved = builder.emit("conv2d", (fed, strided), {**CONV, "strides": (2, 2)})
    wide = builder.constant(np.ones((5, 5, 32, 32), np.float32), "v")
    assert offered(builder.finish({"y": builder.emit("conv2d", (halved, wide), CONV)})) == []


def joined(size: int = 12) -> Graph:
    """Two inputs end to end, a convolution, and what follows."""
    builder = GraphBuilder("level", [Value("one", (1, size, size, 16)), Value("other", (1, size, size, 8))])
    values = np.random.default_rng(3).standard_normal((3, 3, 24, 16), dtype=np.float32) / 8
    both = builder.emit("concat", ("one", "other"), {"axis": 3})
    made = builder.emit("conv2d", (both, builder.constant(values, "w")), CONV)
    return builder.finish({"y": builder.emit("relu", (made,))})


@pytest.mark.parametrize("chosen", [0, 1])
def test_a_convolution_of_what_lies_end_to_end_has_them_too(chosen: int) -> None:
    graph = joined()
    direct = cut(graph, WINOGRAD[-1:])
    (only,) = direct.alternatives
    assert only.task.name == "winograd2_conv2d_3x3_c24_1x12x12x16_concat_relu"
    rewritten, parts = with_alternatives(graph, direct, (only,)[:chosen])
    (call,) = parts.kernels
    assert call.inputs[:2] == ("one", "other")
    rng = np.random.default_rng(4)
    inputs = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in graph.inputs}
    values = {**rewritten.constants, **inputs}
    feeds = {tensor: values[name] for tensor, name in zip(call.task.dag.inputs, call.inputs, strict=True)}
    (found,) = evaluate_tensors(call.task.dag.outputs, feeds)
    (wanted,) = evaluate(graph, inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))


def test_weights_whose_transform_overflows_are_left_to_the_direct_convolution() -> None:
    weight = np.full((3, 3, 16, 16), 1e37, np.float32)
    assert offered(network(28, weight=weight / np.float32(1e6)))
    assert offered(network(28, weight=weight)) == []


@pytest.mark.parametrize(
    ("size", "batch", "pads"), [(14, 1, (1, 1, 1, 1)), (13, 2, (1, 1, 1, 1)), (15, 1, (0, 2, 2, 0))]
)
@pytest.mark.parametrize("rewrite", WINOGRAD, ids=lambda one: one.name)
def test_the_chosen_kernels_compute_the_graph(rewrite: Winograd, size: int, batch: int, pads: tuple[int, ...]) -> None:
    graph = network(size, batch=batch, pads=pads)
    direct = cut(graph, (rewrite,))
    rewritten, parts = with_alternatives(graph, direct, direct.alternatives[1:])
    assert [call.name for call in parts.kernels] == [parts.tasks[0].name, direct.alternatives[1].task.name]
    assert parts.weights == direct.weights
    assert set(graph.constants) < set(rewritten.constants)
    inputs = {"x": np.random.default_rng(1).standard_normal(graph.inputs[0].shape).astype(np.float32)}
    values = {**rewritten.constants, **inputs}
    for call in parts.kernels:
        feeds = {tensor: values[name] for tensor, name in zip(call.task.dag.inputs, call.inputs, strict=True)}
        (values[call.outputs[0]],) = evaluate_tensors(call.task.dag.outputs, feeds)
    (wanted,) = evaluate(graph, inputs)
    np.testing.assert_allclose(values["y"], wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))


def images(depth: int, taps: tuple[int, ...], pads: tuple[int, ...], strides: tuple[int, ...] = (1, 1, 1)) -> Graph:
    """A convolution of images that follow each other."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder("video", [Value("x", (1, depth, 14, 14, 16))])
    kernel = builder.constant(rng.standard_normal((*taps, 16, 16), dtype=np.float32) / 16, "w")
    attrs = {**CONV, "layout": "NDHWC", "strides": strides, "dilations": (1, 1, 1), "pads": pads}
    return builder.finish({"y": builder.emit("relu", (builder.emit("conv3d", ("x", kernel), attrs),))})


@pytest.mark.parametrize(
    ("graph", "tiles"),
    [
        (images(4, (3, 3, 3), (1,) * 6), ["winograd4"]),
        (images(2, (1, 3, 3), (0, 1, 1, 0, 1, 1)), ["winograd4", "winograd2"]),
        (images(4, (3, 1, 1), (1, 0, 0, 1, 0, 0)), []),
        (images(4, (3, 3, 3), (1,) * 6, (2, 1, 1)), []),
        (images(12, (9, 3, 3), (0, 1, 1, 0, 1, 1)), ["winograd4"]),
        (images(6, (3, 3, 3), (-1, 1, 1, 0, 1, 1)), []),
        (network(28, pads=(-1, 1, 3, 1)), []),
    ],
)
def test_it_is_offered_for_images_that_follow_each_other(graph: Graph, tiles: list[str]) -> None:
    assert [name.partition("_")[0] for name in offered(graph)] == tiles


@pytest.mark.parametrize("rewrite", WINOGRAD, ids=lambda one: one.name)
@pytest.mark.parametrize(("taps", "pads"), [(3, (1,) * 6), (2, (0, 1, 0, 1, 1, 2)), (1, (0, 0, 1, 0, 1, 1))])
def test_images_that_follow_each_other_give_the_direct_result(
    rewrite: Winograd, taps: int, pads: tuple[int, ...]
) -> None:
    graph = images(3, (taps, 3, 3), pads)
    (group,) = fuse(graph).groups
    variant = rewrite.variant(graph, group)
    assert variant is not None
    inputs = {"x": np.random.default_rng(1).standard_normal(graph.inputs[0].shape).astype(np.float32)}
    changed = replace(variant.compute(graph), nodes=variant.group.nodes)
    (found,), (wanted,) = evaluate(changed, inputs), evaluate(graph, inputs)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("rewrite", WINOGRAD, ids=lambda one: one.name)
@pytest.mark.parametrize("half", HALVES)
def test_halves_are_transformed_in_float32_and_rounded_once(half: str, rewrite: Winograd) -> None:
    rng = np.random.default_rng(2)
    builder = GraphBuilder("halves", [Value("x", (1, 14, 14, 32), half)])
    weight = builder.constant(rng.standard_normal((3, 3, 32, 32)).astype(half), "w")
    bias = builder.constant(np.full(32, 16, half), "b")
    product = builder.emit("conv2d", ("x", weight), CONV)
    graph = builder.finish({"y": builder.emit("relu", (builder.emit("add", (product, bias)),))})
    alternatives = cut(graph, (rewrite,)).alternatives
    assert alternatives[0].speedup > 0
    rewritten, parts = with_alternatives(graph, cut(graph, (rewrite,)), alternatives)
    (call,) = parts.kernels
    assert call.task.name.startswith(rewrite.name)
    x = rng.standard_normal(graph.inputs[0].shape).astype(half)
    values = {**rewritten.constants, "x": x}
    kernel = build_kernel(call.task, default_steps(call.task.dag, call.task.hardware), "kernel")
    buffers = [aligned_array(spec.buffer_shape, spec.dtype) for spec in kernel.args]
    for name, spec, buffer in zip(call.inputs, kernel.args, buffers, strict=False):
        buffer[...] = values[name] if spec.packing is None else spec.packing.pack(values[name])
    load_kernels([kernel])["kernel"].bind(buffers, 2)()
    wide = {name: array.astype("float64") for name, array in graph.constants.items()}
    exact = evaluate_node(graph.nodes[0], [x.astype("float64"), wide[weight]])
    exact = np.maximum(exact + wide[bias], 0)
    # Half a step of the type, and what the transforms lose.
    allowed = ml_dtypes.finfo(half).eps / 2 * exact + 1e-5 * exact.max()
    np.testing.assert_array_less(np.abs(buffers[-1].astype("float64") - exact), allowed)


def test_instructions_that_sum_bfloat16_are_faster_than_a_transform() -> None:
    builder = GraphBuilder("halves", [Value("x", (1, 56, 56, 32), "bfloat16")])
    weight = builder.constant(np.ones((3, 3, 32, 32), "bfloat16"), "w")
    graph = builder.finish({"y": builder.emit("conv2d", ("x", weight), CONV)})
    (group,) = fuse(graph).groups
    assert WINOGRAD[0].speedup(graph, group, HardwareParams(1)) > 0
    assert WINOGRAD[0].speedup(graph, group, HardwareParams(1, has_bfloat16_dots=True)) == 0
