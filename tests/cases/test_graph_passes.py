"""Graph passes: tests/cases/graph/PASS.WHAT.txt holds a graph, a pass, and the graph that the pass makes of it.

To add a case, write a file with the sections `input` and `pass` and run `pytest tests/cases --update-golden`. The
output of a pass that has to leave a graph alone is the word `unchanged`.
"""

import numpy as np
import pytest

from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.pipeline import PIPELINE
from retune.compiler.graph.verify import verify
from tests.support.cases import check_case, read_cases
from tests.support.graph_text import constant_of, parse_graph

PASSES = {graph_pass.__name__: graph_pass for graph_pass in PIPELINE}
CASES = read_cases("graph")


def assert_same_results(changed: Graph, graph: Graph) -> None:
    """Both compute the same up to rounding, where quantized values differ by one step in few places."""
    feed = {value.name: constant_of(value) for value in graph.inputs}
    for found, wanted in zip(evaluate(changed, feed), evaluate(graph, feed), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        step = 0.02 if found.dtype.itemsize == 2 else 1e-4  # a pass may round halves less often
        differ = ~np.isclose(found, wanted, rtol=step, atol=step / 10, equal_nan=True)
        assert differ.mean() <= (0.01 if "quantize" in str(graph) else 0.0)


@pytest.mark.parametrize("name", CASES)
def test_a_pass_gives_the_output_of_its_case_and_the_same_results(name: str, update_golden: bool) -> None:
    case = CASES[name]
    graph_pass, before = PASSES[case["pass"]], parse_graph(case["input"])
    assert name.startswith(f"{graph_pass.__name__}.")
    assert str(before) == case["input"], "what is written is what a graph prints"
    verify(before)
    after = graph_pass(before)
    verify(after)
    output = "unchanged" if str(after) == str(before) else str(after)
    check_case("graph", name, {**case, "output": output}, update_golden)
    assert_same_results(after, before)


def test_every_pass_has_cases_with_and_without_effect() -> None:
    for unchanged in (False, True):
        seen = {case["pass"] for case in CASES.values() if (case.get("output") == "unchanged") == unchanged}
        assert seen == PASSES.keys()
