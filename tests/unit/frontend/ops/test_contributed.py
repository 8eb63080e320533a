"""The operators that ONNX Runtime adds to ONNX's compute what ONNX Runtime computes, for random nodes."""

import re
from pathlib import Path

import numpy as np
import pytest

from retune.compiler.core.errors import UnsupportedOperatorError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import CONVERTERS, load_model
from retune.compiler.frontend.ops.contributed import nchwc
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from tests.support.contributed.case import Draw
from tests.support.contributed.references import REFERENCES
from tests.support.contributed.refused import DRAWN, REFUSED, table

_FEW, _MANY = 6, 150
_DOCUMENT = Path(__file__).parents[4] / "docs/reference/onnx.md"
_TABLE = re.compile(r"\| theme \| operators \| refused \|\n(?:\|.*\n)+")


def _check(name: str, seeds: range) -> None:
    """Compare nodes of some seeds; ONNX Runtime refuses combinations of some, but not most."""
    faults, compared = [], 0
    for seed in seeds:
        case = DRAWN[name](Draw(seed))
        expected = case.expected()
        if expected is not None:
            compared += 1
            faults += case.faults(expected, case.computed(expected))
    assert faults == []
    assert compared > len(seeds) / 2


@pytest.mark.parametrize("name", DRAWN)
def test_contributed_operators_match_onnxruntime(name: str) -> None:
    _check(name, range(_FEW))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", DRAWN)
def test_contributed_operators_match_onnxruntime_for_many_nodes(name: str) -> None:
    _check(name, range(1000, 1000 + _MANY))


@pytest.mark.parametrize("name", REFERENCES)
def test_contributed_operators_without_a_cpu_kernel_match_a_reference(name: str) -> None:
    for seed in range(_FEW):
        case, expected = REFERENCES[name](Draw(seed))
        assert case.faults(expected, case.computed(expected)) == []


@pytest.mark.parametrize("name", ["Attention", "GroupQueryAttention", "QLinearAdd", "DynamicQuantizeMatMul"])
def test_kernels_of_contributed_operators_match_onnxruntime(name: str) -> None:
    case = DRAWN[name](Draw(1))
    expected = case.expected()
    assert expected is not None
    executor = GraphExecutor(compile_graph(optimize(load_model(case.model(expected))), Target.host()))
    for key, array in case.fed.items():
        if executor.get_input_index(key) >= 0:
            executor.set_input(key, array)
    executor.run()
    assert case.faults(expected, [np.asarray(executor.get_output(i)) for i in range(len(expected))]) == []


@pytest.mark.parametrize(("op", "what"), REFUSED)
def test_refused_forms_of_contributed_operators_are_named(op: str, what: str) -> None:
    case = REFUSED[op, what]
    results = [np.zeros(1, "float32") for name in case.results if name]
    with pytest.raises(UnsupportedOperatorError, match=rf"1 node: 'node' \({case.op}\): ") as error:
        load_model(case.model(results))
    assert "do not fit" not in str(error.value)


def test_the_documents_list_contributed_operators_and_what_is_refused(update_golden: bool) -> None:
    text = _DOCUMENT.read_text(encoding="utf-8")
    if update_golden:
        _DOCUMENT.write_text(_TABLE.sub(lambda _: table(), text), encoding="utf-8")
    assert _TABLE.findall(text) == [table()]


def test_every_contributed_operator_is_compared() -> None:
    contributed = {name.rpartition(".")[2] for name in CONVERTERS if name.startswith("com.microsoft.")}
    contributed -= {"Conv", *nchwc.CONVERTERS}  # of networks, in tests/backend/test_onnxruntime_networks.py
    assert contributed == {*DRAWN} | {name.partition(" ")[0] for name in REFERENCES}
