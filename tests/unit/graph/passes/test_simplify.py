"""Simplification comes to an end; what each rule does stands in tests/cases/graph/simplify.*.txt."""

import pytest

from retune.compiler.graph.passes.simplify import SETTLING_RULES, Simplify
from tests.support.cases import read_cases
from tests.support.graph_text import parse_graph

GRAPHS = {name: case["input"] for name, case in read_cases("graph").items()}


@pytest.mark.parametrize("one", [Simplify(), Simplify(rules=SETTLING_RULES)], ids=["simplify", "settle"])
def test_simplifying_twice_changes_nothing(one: Simplify) -> None:
    for name, text in GRAPHS.items():
        once = one.apply(parse_graph(text))
        assert str(one.apply(once)) == str(once), name
