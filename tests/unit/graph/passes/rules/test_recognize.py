"""Expanded forms in any spelling become one operator that computes the same; near misses are left alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph, Node, Value
from retune.compiler.graph.passes.common_subexpressions import share_subexpressions
from retune.compiler.graph.passes.rules.recognize import recognize
from retune.compiler.graph.passes.rules.simplify import simplify
from retune.compiler.graph.verify import verify
from tests.support.expanded_operators import (
    Writer,
    gelu,
    gelu_tanh,
    hard_swish,
    log_softmax,
    normalize,
    rms_norm,
    silu,
    softmax,
)

Write = Callable[[Writer, str], str]
SHAPE = (2, 3, 16)

FORMS: dict[str, Write] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "hard_swish": hard_swish,
    "softmax": softmax,
    "softmax of a middle axis": partial(softmax, axes=(1,)),
    "log_softmax": log_softmax,
    "normalize": normalize,
    "normalize over two axes": partial(normalize, axes=(1, 2)),
    "normalize by the root mean square": rms_norm,
}
WITH_SCALE_AND_BIAS = ("normalize", "normalize over two axes")
NEAR_MISSES: dict[str, Write] = {
    "half of a gelu": partial(gelu, half=0.25),
    "erf of another scale": partial(gelu, root=0.7),
    "gelu of another cube": partial(gelu_tanh, cube=0.0447),
    "swish of another slope": partial(silu, slope=1.702),
    "hard swish of another shift": partial(hard_swish, shift=2.5),
    "softmax whose sum is over another axis": partial(softmax, axes=(2,), other=(1,)),
    "softmax over two axes": partial(softmax, axes=(1, 2)),
    "log softmax whose sum is over another axis": partial(log_softmax, axes=(2,), other=(1,)),
    "norm by the fourth moment": partial(normalize, power=4.0),
    "norm by the root mean cube": partial(rms_norm, power=3.0),
}
RECOGNIZED = {"gelu", "gelu_tanh", "silu", "hard_swish", "softmax", "log_softmax", "normalize"}


def graph_of(write: Write, draw: Callable[[], bool]) -> Graph:
    """The form on what an operator makes of the input."""
    builder = GraphBuilder("case", [Value("x", SHAPE)])
    x = builder.emit("mul", ["x", builder.constant(np.linspace(0.5, 1.5, 16, dtype=np.float32))])
    return builder.finish({"y": builder.emit("relu", [write(Writer(builder, draw), x)])})


def simplified(graph: Graph) -> Graph:
    for graph_pass in (share_subexpressions, recognize, simplify, recognize):
        graph = graph_pass(graph)
        verify(graph)
    return graph


def assert_same(changed: Graph, graph: Graph, spread: float = 2.0) -> None:
    x = spread * np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
    (ours,), (theirs,) = evaluate(changed, {"x": x}), evaluate(graph, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=20)
@given(data=st.data())
def test_any_spelling_is_one_operator(name: str, data: st.DataObject) -> None:
    graph = graph_of(FORMS[name], lambda: data.draw(st.booleans()))
    found = simplified(graph)
    left = [node.op for node in found.nodes]
    behind = ["mul", "add"] if name in WITH_SCALE_AND_BIAS else []
    assert left == ["mul", name.split(maxsplit=1)[0], *behind, "relu"]
    assert_same(found, graph)


@pytest.mark.parametrize("name", NEAR_MISSES)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_near_misses_stay(name: str, data: st.DataObject) -> None:
    graph = graph_of(NEAR_MISSES[name], lambda: data.draw(st.booleans()))
    found = simplified(graph)
    assert RECOGNIZED.isdisjoint(node.op for node in found.nodes)
    assert_same(found, graph)


@pytest.mark.parametrize("name", FORMS)
def test_what_others_read_inside_stays(name: str) -> None:
    """Every inner value in turn gets a second reader."""
    whole = graph_of(FORMS[name], lambda: True)
    behind = 2 if name in WITH_SCALE_AND_BIAS else 0
    for node in whole.nodes[1 : -2 - behind]:
        reader = Node("tanh", (node.output,), ("z",))
        described = replace(whole.values[node.output], name="z")
        graph = replace(
            whole, nodes=(*whole.nodes, reader), outputs=("y", "z"), values={**whole.values, "z": described}
        )
        verify(graph)
        found = recognize(graph)
        verify(found)
        left = [one for one in found.nodes if one.op in RECOGNIZED]
        assert not left or _is_root_mean_square_of_centred(name, left), node
        feed = {"x": np.random.default_rng(2).standard_normal(SHAPE, dtype=np.float32)}
        for ours, theirs in zip(evaluate(found, feed), evaluate(graph, feed), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def _is_root_mean_square_of_centred(name: str, nodes: list[Node]) -> bool:
    """What is left of a layer norm of which others read the mean is still a norm, of x - mean."""
    return name in WITH_SCALE_AND_BIAS and not any(node.flag("centred") for node in nodes)


def test_a_fast_variance_is_a_norm_too() -> None:
    def write(w: Writer, x: str) -> str:
        mean = w("reduce_mean", x, axes=(2,), keepdims=True)
        squares = w("reduce_mean", w("mul", x, x), axes=(2,), keepdims=True)
        variance = w("sub", squares, w("mul", mean, mean))
        return w("div", w("sub", x, mean), w("sqrt", w("add", variance, 1e-5)))

    graph = graph_of(write, lambda: False)
    found = simplified(graph)
    assert [node.op for node in found.nodes] == ["mul", "normalize", "relu"]
    assert_same(found, graph)


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_a_variance_over_another_axis_is_the_root_mean_square_of_what_is_centred(data: st.DataObject) -> None:
    graph = graph_of(partial(normalize, axes=(2,), other=(1,)), lambda: data.draw(st.booleans()))
    found = simplified(graph)
    norms = [(node.flag("centred"), node.ints("axes")) for node in found.nodes if node.op == "normalize"]
    assert norms in ([], [(False, (1,))])
    assert_same(found, graph)


def test_sums_times_a_share_and_bounds_are_means_and_clips() -> None:
    def write(w: Writer, x: str) -> str:
        mean = w("mul", w("reduce_sum", x, axes=(2,), keepdims=True), 1 / 16)
        bounded = w("minimum", w("maximum", mean, -0.5), 0.5)
        return w("add", w("minimum", w("relu", x), 6), bounded)

    graph = graph_of(write, lambda: False)
    found = simplify(graph)
    assert [node.op for node in found.nodes] == ["mul", "reduce_mean", "clip", "clip", "add", "relu"]
    assert_same(found, graph)
