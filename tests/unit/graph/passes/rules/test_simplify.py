"""Simplification comes to an end; what each rule does stands in tests/cases/graph/simplify.*.txt."""

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Value
from retune.compiler.graph.passes.rules.simplify import settle, simplify
from retune.compiler.graph.pipeline import GraphPass
from tests.support.cases import read_cases
from tests.support.graph_text import parse_graph

GRAPHS = {name: case["input"] for name, case in read_cases("graph").items()}


@pytest.mark.parametrize("graph_pass", [simplify, settle])
def test_simplifying_twice_changes_nothing(graph_pass: GraphPass) -> None:
    for name, text in GRAPHS.items():
        once = graph_pass(parse_graph(text))
        assert str(graph_pass(once)) == str(once), name


def test_two_constants_that_stay_do_not_change_places(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    builder = GraphBuilder("net", [Value("x", (2, 4))])
    numbers = builder.constant(np.ones((4, 3), np.int8), "w")
    scale, zero = builder.constant(np.array(0.5, np.float32), "s"), builder.constant(np.array(0, np.int8), "z")
    weight = builder.emit("dequantize", [numbers, scale, zero], {"axis": 0})
    scaled = builder.emit("mul", [builder.scalar(2.0, "float32"), weight])
    simplify(builder.finish({"y": builder.emit("dense", ["x", scaled])}))
    assert not caplog.records


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=6), st.data())
def test_reshaped_normalizations_of_transposes_compute_the_same(factors: list[int], data: st.DataObject) -> None:
    def merged(label: str) -> tuple[int, ...]:
        inner = st.integers(1, len(factors) - 1)
        cuts = [0, *sorted(data.draw(st.sets(inner), label)), len(factors)]
        return tuple(prod(factors[start:stop]) for start, stop in pairwise(cuts))

    before, after = merged("before"), merged("after")
    perm = tuple(data.draw(st.permutations(range(len(before)))))
    inverse = tuple(map(int, np.argsort(perm)))
    axes = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(after))), min_size=1))))
    builder = GraphBuilder("net", [Value("x", tuple(before[place] for place in inverse), "float64")])
    groups = builder.emit("reshape", [builder.emit("transpose", ["x"], {"perm": perm})], {"shape": after})
    attrs: dict[str, Attribute] = {"axes": axes, "epsilon": 1e-5, "centred": data.draw(st.booleans(), "centred")}
    normal = builder.emit("reshape", [builder.emit("normalize", [groups], attrs)], {"shape": before})
    graph = builder.finish({"y": builder.emit("transpose", [normal], {"perm": inverse})})
    feed = {"x": np.random.default_rng(0).standard_normal(graph.inputs[0].shape)}
    (found,), (wanted,) = evaluate(simplify(graph), feed), evaluate(graph, feed)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("links", "doubles"), [(1200, False), (12, True)])
def test_slices_of_many_concatenations_end(links: int, doubles: bool) -> None:
    builder = GraphBuilder("net", [Value("x", (2, 3)), Value("y", (2, 6))])
    value = builder.emit("concat", ["x", "x"], {"axis": 1})
    for _ in range(links):
        # Doubled, the first rows are reached on 4,096 ways.
        value = builder.emit("concat", [value, value if doubles else "y"], {"axis": 0})
    stops = (builder.value(value).shape[0], 3)
    graph = builder.finish({"z": builder.emit("slice", [value], {"starts": (0, 0), "stops": stops, "steps": (1, 1)})})
    assert len(simplify(graph).nodes) <= len(graph.nodes)
