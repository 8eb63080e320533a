"""Fusion on small graphs drawn by hand, and its promises on random ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compiler.graph.builder import GraphBuilder
from compiler.graph.fuse import fuse
from compiler.graph.ir import Attribute, Graph, Value

CONV: dict[str, Attribute] = {
    "strides": (1, 1),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
    "groups": 1,
    "layout": "NHWC",
}


def _start() -> tuple[GraphBuilder, str]:
    builder = GraphBuilder("net", [Value("x", (1, 4, 4, 8))])
    return builder, "x"


def _conv(builder: GraphBuilder, x: str, name: str = "conv") -> str:
    weight = builder.constant(np.ones((3, 3, 8, 8), np.float32), "w")
    return builder.emit("conv2d", (x, weight), CONV, name=name)


def _bias(builder: GraphBuilder) -> str:
    return builder.constant(np.ones(8, np.float32), "b")


def _groups(graph: Graph) -> list[str]:
    return ["+".join(node.op for node in group.nodes) for group in fuse(graph).groups]


def test_a_convolution_takes_bias_and_activation() -> None:
    builder, x = _start()
    y = builder.emit("relu", (builder.emit("add", (_conv(builder, x), _bias(builder))),))
    y = _conv(builder, y)
    assert _groups(builder.finish({"out": y})) == ["conv2d+add+relu", "conv2d"]


def test_the_later_of_two_branches_takes_the_residual_addition() -> None:
    builder, x = _start()
    left, right = _conv(builder, x, "left"), _conv(builder, x, "right")
    y = builder.emit("relu", (builder.emit("add", (left, right)),))
    graph = builder.finish({"out": y})
    assert _groups(graph) == ["conv2d", "conv2d+add+relu"]
    assert [group.nodes[0].name for group in fuse(graph).groups] == ["left", "right"]


def test_the_heavier_of_two_branches_takes_the_residual_addition() -> None:
    builder, x = _start()
    heavy = _conv(builder, x, "heavy")
    weight = builder.constant(np.ones((1, 1, 8, 8), np.float32), "w")
    light = builder.emit("conv2d", (x, weight), {**CONV, "pads": (0, 0, 0, 0)}, name="light")
    graph = builder.finish({"out": builder.emit("add", (heavy, light))})
    assert [group.nodes[0].name for group in fuse(graph).groups] == ["light", "heavy"]
    assert _groups(graph) == ["conv2d", "conv2d+add"]


def test_a_value_with_two_readers_stays_visible() -> None:
    builder, x = _start()
    y = _conv(builder, x)
    z = _conv(builder, builder.emit("relu", (y,)))
    out = builder.emit("add", (y, z))
    assert _groups(builder.finish({"out": out})) == ["conv2d", "relu", "conv2d+add"]


def test_a_graph_output_is_never_hidden() -> None:
    builder, x = _start()
    y = _conv(builder, x)
    z = builder.emit("relu", (y,))
    assert _groups(builder.finish({"first": y, "second": z})) == ["conv2d", "relu"]


def test_a_diamond_of_elementwise_operators_is_taken_whole() -> None:
    builder, x = _start()
    y = _conv(builder, x)
    y = builder.emit("mul", (y, builder.emit("sigmoid", (y,))))
    assert _groups(builder.finish({"out": y})) == ["conv2d+sigmoid+mul"]


def test_a_diamond_around_a_reduction_is_not() -> None:
    builder, x = _start()
    y = _conv(builder, x)
    gate = builder.emit("reduce_mean", (y,), {"axes": (1, 2), "keepdims": True})
    y = builder.emit("mul", (y, builder.emit("sigmoid", (gate,))))
    assert _groups(builder.finish({"out": y})) == ["conv2d", "reduce_mean+sigmoid", "mul"]


def test_a_follower_of_another_shape_is_not_taken() -> None:
    builder, x = _start()
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


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small networks of one shape in which any node may read any earlier value."""
    builder, x = _start()
    values = [x]
    for _ in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(["relu", "add", "mul", "conv", "softmax"]))
        operands = [draw(st.sampled_from(values)) for _ in range(2)]
        if op == "conv":
            values.append(_conv(builder, operands[0]))
        elif op == "softmax":
            values.append(builder.emit(op, operands[:1], {"axis": 3}))
        else:
            values.append(builder.emit(op, operands[: 1 if op == "relu" else 2]))
    outputs = draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique=True))
    return builder.finish({f"out{place}": name for place, name in enumerate(outputs)})


@given(graphs())
def test_groups_cover_the_graph_and_can_run_in_order(graph: Graph) -> None:
    fusion = fuse(graph)
    covered = [node.output for group in fusion.groups for node in group.nodes]
    assert sorted([*covered, *fusion.aliases]) == sorted(node.output for node in graph.nodes)
    visible = {value.name for value in graph.inputs} | set(graph.constants)
    for group in fusion.groups:
        inside: set[str] = set()
        for node in group.nodes:
            assert set(node.inputs) <= visible | inside
            inside.add(node.output)
        visible.add(group.output)
    assert set(graph.outputs) <= visible
