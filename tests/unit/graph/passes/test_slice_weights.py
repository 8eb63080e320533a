"""Slices of a product become products of slices, unless somebody reads the whole."""

import numpy as np
import pytest

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.passes.simplify import Simplify
from retune.compiler.graph.passes.slice_weights import SliceWeights


def left(graph: Graph) -> list[str]:
    changed = SliceWeights().apply(Simplify().apply(graph))
    feed = {"x": np.random.default_rng(0).standard_normal((1, 5, 4), dtype=np.float32)}
    for ours, theirs in zip(evaluate(changed, feed), evaluate(graph, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return [node.op for node in changed.nodes if node.op not in ("reshape", "tanh", "transpose")]


def cut(b: GraphBuilder, x: str, axis: int, start: int, stop: int) -> str:
    shape = b.value(x).shape
    bounds = [(start, stop) if place == axis else (0, extent) for place, extent in enumerate(shape)]
    starts, stops = zip(*bounds, strict=True)
    return b.emit("slice", [x], {"starts": starts, "stops": stops, "steps": (1,) * len(shape)})


def projected(b: GraphBuilder, made: int) -> str:
    weight = np.random.default_rng(1).standard_normal((4, made)).astype(np.float32)
    flat = b.emit("dense", [b.emit("reshape", ["x"], {"shape": (5, 4)}), b.constant(weight)])
    return b.emit("add", [flat, b.constant(np.arange(made, dtype=np.float32))])


@pytest.mark.parametrize("form", ["columns", "heads", "turned heads"])
def test_queries_keys_and_values_are_three_products(form: str) -> None:
    b = GraphBuilder("g", [Value("x", (1, 5, 4))])
    x, axis = projected(b, 18), 1
    if form != "columns":
        x, axis = b.emit("reshape", [x], {"shape": (1, 5, 3, 2, 3)}), 2
    if form == "turned heads":
        x, axis = b.emit("transpose", [x], {"perm": (2, 0, 3, 1, 4)}), 0
    step = b.value(x).shape[axis] // 3
    parts = [b.emit("tanh", [cut(b, x, axis, part * step, (part + 1) * step)]) for part in range(3)]
    assert left(b.finish(dict(zip("qkv", parts, strict=True)))) == ["dense", "add"] * 3


def test_what_is_read_as_a_whole_too_stays_whole() -> None:
    b = GraphBuilder("g", [Value("x", (1, 5, 4))])
    x = projected(b, 6)
    graph = b.finish({"y": b.emit("tanh", [cut(b, x, 1, 0, 3)]), "z": b.emit("tanh", [x])})
    assert left(graph) == ["dense", "add", "slice"]


def test_slices_that_overlap_are_no_saving() -> None:
    b = GraphBuilder("g", [Value("x", (1, 5, 4))])
    x = projected(b, 6)
    graph = b.finish({"y": b.emit("tanh", [cut(b, x, 1, 0, 5)]), "z": b.emit("tanh", [cut(b, x, 1, 1, 6)])})
    assert left(graph) == ["dense", "add", "slice", "slice"]


def test_rows_are_not_weights() -> None:
    b = GraphBuilder("g", [Value("x", (1, 5, 4))])
    assert left(b.finish({"y": b.emit("tanh", [cut(b, projected(b, 6), 0, 0, 2)])})).count("slice") == 1
