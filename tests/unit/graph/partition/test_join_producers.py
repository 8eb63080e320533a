"""Which kernels compute what only they read, and that they compute it right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.executors import executor_of
from tests.support.attributes import CONV
from tests.support.small_graphs import bias, conv, start

HARDWARE = HardwareParams(num_cores=2)
LEAKY: dict[str, Attribute] = {"alpha": 0.1}
MOVES = ("slice", "concat", "transpose", "pad", "windows", "roll")


def _kernels(graph: Graph) -> list[str]:
    return ["+".join(call.nodes) for call in partition(graph, Target.host(), HARDWARE).kernels]


def _part(builder: GraphBuilder, x: str, axis: int, start: int, stop: int) -> str:
    shape = builder.value(x).shape
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    return builder.emit("slice", [x], {"starts": tuple(starts), "stops": tuple(stops), "steps": (1,) * len(shape)})


def _level(*, padded: bool = True, read: bool = False) -> Graph:
    """A level of a U-Net: two branches end to end, a convolution with bias, and perhaps another reader."""
    builder, x = start()
    branches = conv(builder, x), builder.emit("exp", (x,), name="exp")
    joined = builder.emit("concat", branches, {"axis": 3}, name="concat")
    weight = builder.constant(np.ones((3, 3, 16, 8), np.float32), "w")
    attrs = CONV if padded else {**CONV, "pads": (0, 0, 0, 0)}
    made = builder.emit("conv2d", (joined, weight), attrs, name="second")
    outputs = {"out": builder.emit("add", (made, bias(builder)), name="add")}
    return builder.finish({**outputs, "more": builder.emit("exp", (joined,), name="last")} if read else outputs)


def test_a_convolution_with_padding_takes_the_concatenation_that_it_alone_reads() -> None:
    assert _kernels(_level()) == ["conv", "exp", "concat+second+add"]
    assert _kernels(_level(padded=False)) == ["conv", "exp", "concat", "second+add"]
    assert _kernels(_level(read=True)) == ["conv", "exp", "concat", "second+add", "last"]


@pytest.mark.parametrize(
    ("widths", "kernels"),
    [((32, 16), ["concat+conv+add"]), ((40, 24, 72), ["concat+conv+add"]), ((32, 8), ["concat", "conv+add"])],
)
def test_a_convolution_of_points_sums_over_one_operand_after_the_other(
    widths: tuple[int, ...], kernels: list[str]
) -> None:
    graph = _of_points(widths)
    assert _kernels(graph) == kernels
    _computed(graph)


def test_a_convolution_of_points_computes_no_activations() -> None:
    builder = GraphBuilder("net", [Value("x", (1, 4, 4, 16))])
    joined = builder.emit("concat", ("x", builder.emit("exp", ("x",), name="exp")), {"axis": 3}, name="concat")
    weight = builder.constant(np.ones((1, 1, 32, 8), np.float32), "w")
    made = builder.emit("conv2d", (joined, weight), {**CONV, "pads": (0, 0, 0, 0)}, name="conv")
    assert _kernels(builder.finish({"y": made})) == ["exp", "concat+conv"]


def test_a_value_stays_where_others_read_a_view_of_it() -> None:
    builder = GraphBuilder("net", [Value("x", (8, 16)), Value("w", (8, 16))])
    whole = builder.emit("concat", ("x", "w"), {"axis": 0}, name="whole")
    part = _part(builder, whole, 0, 0, 4)
    both = builder.emit("concat", (part, whole), {"axis": 0}, name="both")
    graph = builder.finish({"y": both, "z": builder.emit("softmax", (part,), {"axis": 1}, name="softmax")})
    assert _kernels(graph) == ["whole", "slice+both", "softmax"]
    _computed(graph)


def test_a_value_is_taken_once_all_its_readers_are() -> None:
    builder = GraphBuilder("net", [Value("x", (8, 16))])
    part = _part(builder, "x", 1, 0, 8)
    turned = builder.emit("neg", (part,), name="turned")
    graph = builder.finish({"y": builder.emit("concat", (part, turned), {"axis": 0})})
    assert len(_kernels(graph)) == 1
    _computed(graph)


@pytest.mark.parametrize(("count", "kernels"), [(8, 1), (16, 2)])
def test_a_norm_reads_the_rows_of_a_few_operands(count: int, kernels: int) -> None:
    builder = GraphBuilder("net", [Value(f"x{place}", (2, 32)) for place in range(count)])
    whole = builder.emit("concat", tuple(f"x{place}" for place in range(count)), {"axis": 0})
    graph = builder.finish({"y": builder.emit("softmax", (whole,), {"axis": 1})})
    assert len(_kernels(graph)) == kernels
    _computed(graph)


def test_a_number_is_computed_in_one_kernel() -> None:
    builder = GraphBuilder("net", [Value("x", ())])
    graph = builder.finish({"y": builder.emit("neg", (builder.emit("exp", ("x",)),))})
    assert len(_kernels(graph)) == 1
    _computed(graph)


def _of_points(widths: tuple[int, ...]) -> Graph:
    """A 1 x 1 convolution with bias of a concatenation."""
    builder = GraphBuilder("net", [Value(f"x{place}", (1, 7, 9, width)) for place, width in enumerate(widths)])
    joined = builder.emit("concat", tuple(f"x{place}" for place in range(len(widths))), {"axis": 3}, name="concat")
    rng = np.random.default_rng(0)
    weight = builder.constant(rng.standard_normal((1, 1, sum(widths), 8), np.float32), "w")
    made = builder.emit("conv2d", (joined, weight), {**CONV, "pads": (0, 0, 0, 0)}, name="conv")
    return builder.finish({"out": builder.emit("add", (made, bias(builder)), name="add")})


def test_the_joined_kernel_is_that_of_the_reader() -> None:
    cut = partition(_level(), Target.host(), HARDWARE)
    assert cut.kernels[-1].name.startswith("conv2d_3x3_c16")
    assert cut.tunable[-1]


def test_a_convolution_with_padding_takes_slices_and_no_activations() -> None:
    builder = GraphBuilder("net", [Value("x", (1, 4, 4, 16))])
    part = builder.emit(
        "slice", ("x",), {"starts": (0, 0, 0, 0), "stops": (1, 4, 4, 8), "steps": (1,) * 4}, name="part"
    )
    active = builder.emit("leaky_relu", (conv(builder, part, "one"),), LEAKY, name="active")
    both = {"y": conv(builder, active, "two"), "z": builder.emit("exp", (active,), name="exp")}
    assert _kernels(builder.finish(both)) == ["part+one+active", "two", "exp"]
    builder, x = start()
    active = builder.emit("leaky_relu", (x,), LEAKY, name="active")
    assert _kernels(builder.finish({"y": conv(builder, active, "one")})) == ["active", "one"]


def test_a_dilated_convolution_reads_a_copy_of_the_rows_that_a_concatenation_wraps_around() -> None:
    builder = GraphBuilder("ring", [Value("x", (1, 40, 32), "float32")])
    wrapped = builder.emit("concat", [_part(builder, "x", 1, 32, 40), "x"], {"axis": 1}, name="concat")
    image = builder.emit("reshape", [wrapped], {"shape": (1, 1, 48, 32)})
    weight = builder.constant(np.ones((1, 3, 32, 32), np.float32), "w")
    attrs: dict[str, Attribute] = {**CONV, "pads": (0, 0, 0, 0), "dilations": (1, 4)}
    graph = builder.finish({"y": builder.emit("conv2d", [image, weight], attrs, name="conv")})
    assert _kernels(graph)[-1] == "conv"


def test_what_is_broadcast_is_computed_once() -> None:
    builder = GraphBuilder("net", [Value("x", (8, 8, 16)), Value("scale", (1, 1, 16))])
    gate = builder.emit("sigmoid", ("scale",), name="gate")
    graph = builder.finish({"y": builder.emit("mul", ("x", gate), name="scaled")})
    assert _kernels(graph) == ["gate", "scaled"]


def _rotary() -> Graph:
    """x * cos + rotate_half(x) * sin, as transformers writes it."""
    builder = GraphBuilder("net", [Value("x", (6, 2, 32)), Value("cos", (6, 1, 32)), Value("sin", (6, 1, 32))])
    turned = builder.emit("neg", (_part(builder, "x", 2, 16, 32),))
    halves = builder.emit("concat", (turned, _part(builder, "x", 2, 0, 16)), {"axis": 2})
    one, other = builder.emit("mul", ("x", "cos")), builder.emit("mul", (halves, "sin"))
    return builder.finish({"y": builder.emit("add", (one, other))})


def test_a_rotary_embedding_is_one_kernel() -> None:
    assert len(_kernels(_rotary())) == 1


def _computed(graph: Graph) -> None:
    """Compiled, the graph gives what its evaluation gives."""
    rng = np.random.default_rng(1)
    feed = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in graph.inputs}
    executor = executor_of(compile_graph(graph, Target.host(), threads=2), 2)
    for name, array in feed.items():
        executor.set_input(name, array)
    executor.run()
    for place, wanted in enumerate(evaluate(graph, feed)):
        np.testing.assert_allclose(executor.get_output(place), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("graph", [_level(), _rotary()], ids=["concat", "rotary"])
def test_joined_kernels_compute_the_same(graph: Graph) -> None:
    _computed(graph)


def _windows(builder: GraphBuilder, x: str) -> str:
    """The rows of `x` in another order: those of two columns beside each other where the width is even."""
    batch, height, width, channels = builder.value(x).shape
    part = 2 if width % 2 == 0 else 1
    apart = builder.emit("reshape", (x,), {"shape": (batch, height, width // part, part, channels)})
    turned = builder.emit("transpose", (apart,), {"perm": (0, 2, 1, 3, 4)})
    return builder.emit("reshape", (turned,), {"shape": (batch, width // part, height * part, channels)})


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_random_moves_and_elementwise_operators_compute_the_same(data: st.DataObject) -> None:
    # Rows are moved by their readers from 16 elements on.
    builder = GraphBuilder("net", [Value("x", (1, 4, 6, 16))])
    values = ["x", builder.emit("relu", ("x",))]
    for _ in range(data.draw(st.integers(2, 9))):
        name = data.draw(st.sampled_from(values))
        shape = builder.value(name).shape
        op = data.draw(st.sampled_from([*MOVES, *MOVES, "leaky_relu", "exp", "add", "conv", "points", "normalize"]))
        alike = [one for one in values if builder.value(one).shape == shape]
        other = data.draw(st.sampled_from(alike))
        if op == "slice":
            axis = data.draw(st.sampled_from([place for place in (1, 2, 3) if shape[place] > 1] or [0]))
            first = data.draw(st.integers(0, shape[axis] - 1))
            values.append(_part(builder, name, axis, first, data.draw(st.integers(first + 1, shape[axis]))))
        elif op == "roll":
            axis, place = data.draw(st.integers(1, 2)), 1
            if shape[axis] > 1:
                parts = _part(builder, name, axis, place, shape[axis]), _part(builder, name, axis, 0, place)
                values.append(builder.emit("concat", parts, {"axis": axis}))
        elif op == "concat":
            values.append(builder.emit("concat", (name, other), {"axis": data.draw(st.integers(1, 3))}))
        elif op == "transpose":
            perm = data.draw(st.sampled_from([(0, 2, 1, 3), (0, 3, 1, 2), (2, 0, 1, 3), (0, 1, 3, 2)]))
            values.append(builder.emit("transpose", (name,), {"perm": perm}))
        elif op == "pad":
            before = (0, data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1)), 0)
            attrs: dict[str, Attribute] = {"pads_before": before, "pads_after": (0, 1, 0, 0), "value": 2.0}
            values.append(builder.emit("pad", (name,), attrs))
        elif op == "windows":
            values.append(_windows(builder, name))
        elif op == "normalize":
            normal = builder.emit("normalize", (name,), {"axes": (3,), "centred": True, "epsilon": 1e-3})
            values.append(builder.emit("mul", (normal, builder.scalar(3.0, "float32"))))
        elif op == "conv" and shape[3] == 8:
            values.append(conv(builder, name))
        elif op == "points":
            weight = builder.constant(np.linspace(-0.2, 0.2, shape[3] * 16, dtype=np.float32), "w")
            weight = builder.emit("reshape", (weight,), {"shape": (1, 1, shape[3], 16)})
            values.append(builder.emit("conv2d", (name, weight), {**CONV, "pads": (0, 0, 0, 0)}))
        elif op == "add":
            values.append(builder.emit("add", (name, other)))
        elif op in ("leaky_relu", "exp"):
            values.append(builder.emit(op, (name,), LEAKY if op == "leaky_relu" else {}))
    graph = builder.finish({"y": values[-1], "z": data.draw(st.sampled_from(values[1:]))})
    _computed(optimize(graph) if data.draw(st.booleans()) else graph)
