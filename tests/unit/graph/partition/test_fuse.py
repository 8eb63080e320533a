"""Fusion on small graphs drawn by hand, and its promises on random ones."""

import numpy as np
from hypothesis import given, settings

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.partition.fuse import fuse
from tests.support.attributes import CONV
from tests.support.small_graphs import bias, conv, small_graphs, start


def _groups(graph: Graph) -> list[str]:
    return ["+".join(node.op for node in group.nodes) for group in fuse(graph).groups]


def test_a_convolution_takes_bias_and_activation() -> None:
    builder, x = start()
    y = builder.emit("relu", (builder.emit("add", (conv(builder, x), bias(builder))),))
    y = conv(builder, y)
    assert _groups(builder.finish({"out": y})) == ["conv2d+add+relu", "conv2d"]


def test_the_later_of_two_branches_takes_the_residual_addition() -> None:
    builder, x = start()
    left, right = conv(builder, x, "left"), conv(builder, x, "right")
    y = builder.emit("relu", (builder.emit("add", (left, right)),))
    graph = builder.finish({"out": y})
    assert _groups(graph) == ["conv2d", "conv2d+add+relu"]
    assert [group.nodes[0].name for group in fuse(graph).groups] == ["left", "right"]


def test_the_heavier_of_two_branches_takes_the_residual_addition() -> None:
    builder, x = start()
    heavy = conv(builder, x, "heavy")
    weight = builder.constant(np.ones((1, 1, 8, 8), np.float32), "w")
    light = builder.emit("conv2d", (x, weight), {**CONV, "pads": (0, 0, 0, 0)}, name="light")
    graph = builder.finish({"out": builder.emit("add", (heavy, light))})
    assert [group.nodes[0].name for group in fuse(graph).groups] == ["light", "heavy"]
    assert _groups(graph) == ["conv2d", "conv2d+add"]


def test_a_value_with_two_readers_stays_visible() -> None:
    builder, x = start()
    y = conv(builder, x)
    z = conv(builder, builder.emit("relu", (y,)))
    out = builder.emit("add", (y, z))
    assert _groups(builder.finish({"out": out})) == ["conv2d", "relu", "conv2d+add"]


def test_a_graph_output_is_never_hidden() -> None:
    builder, x = start()
    y = conv(builder, x)
    z = builder.emit("relu", (y,))
    assert _groups(builder.finish({"first": y, "second": z})) == ["conv2d", "relu"]


def test_a_diamond_of_elementwise_operators_is_taken_whole() -> None:
    builder, x = start()
    y = conv(builder, x)
    y = builder.emit("mul", (y, builder.emit("sigmoid", (y,))))
    assert _groups(builder.finish({"out": y})) == ["conv2d+sigmoid+mul"]


def test_a_diamond_around_a_reduction_is_not() -> None:
    builder, x = start()
    y = conv(builder, x)
    gate = builder.emit("reduce_mean", (y,), {"axes": (1, 2), "keepdims": True})
    y = builder.emit("mul", (y, builder.emit("sigmoid", (gate,))))
    assert _groups(builder.finish({"out": y})) == ["conv2d", "reduce_mean+sigmoid", "mul"]


def test_a_follower_of_another_shape_is_not_taken() -> None:
    builder, x = start()
    small = builder.emit("reduce_mean", (x,), {"axes": (1, 2), "keepdims": True})
    assert _groups(builder.finish({"out": builder.emit("add", (small, x))})) == ["reduce_mean", "add"]


def test_reshapes_and_trivial_transposes_are_aliases() -> None:
    builder = GraphBuilder("net", [Value("x", (1, 4, 1, 8))])
    flat = builder.emit("reshape", ("x",), {"shape": (4, 8)})
    moved = builder.emit("transpose", ("x",), {"perm": (1, 2, 0, 3)})
    swapped = builder.emit("transpose", ("x",), {"perm": (0, 3, 1, 2)})
    fusion = fuse(builder.finish({"a": flat, "b": moved, "c": swapped}))
    assert dict(fusion.aliases) == {"a": "x", "b": "x"}
    assert [group.output for group in fusion.groups] == ["c"]


@settings(deadline=None)
@given(small_graphs())
def test_groups_cover_the_graph_and_can_run_in_order(graph: Graph) -> None:
    fusion = fuse(graph)
    covered = [node.output for group in fusion.groups for node in group.nodes]
    assert sorted([*covered, *fusion.aliases]) == sorted(node.output for node in graph.nodes)
    visible = {value.name for value in graph.inputs} | set(graph.constants)

    def root(name: str) -> str:
        return root(fusion.aliases[name]) if name in fusion.aliases else name

    for group in fusion.groups:
        inside: set[str] = set()
        for node in group.nodes:
            assert {root(name) for name in node.inputs} <= visible | inside
            inside.add(node.output)
        visible.add(group.output)
    assert {root(name) for name in graph.outputs} <= visible
