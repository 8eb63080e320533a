"""Random graphs in QDQ form: every stored tensor is as defined, and the network equals the one that shows them."""

from typing import Any

import numpy as np
import pytest

from benchmarks.correctness.quantized_graphs import random_quantized
from retune.compiler.graph.builder import GraphBuilder
from tests.support.quantized_definition import TARGETS, disagreements, exposed, network_results
from tests.support.tiers import long_except


def _check(seed: int) -> None:
    model, inputs = random_quantized(seed)
    target, threads = TARGETS[seed % len(TARGETS)]
    shown = exposed(model)
    tensors = network_results(shown, target, threads, inputs)
    assert not disagreements(shown, {**inputs, **tensors})
    (output,) = network_results(model, target, threads, inputs).values()
    np.testing.assert_array_equal(output, tensors["y"])


@pytest.mark.parametrize("seed", long_except([0, 28], range(30)))
def test_stored_tensors_are_as_defined(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_stored_tensors_of_many_graphs_are_as_defined() -> None:
    for seed in range(300):
        _check(seed)


def test_a_division_that_becomes_a_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = GraphBuilder.emit

    def emit_wrong(builder: GraphBuilder, op: str, *args: Any, **named: Any) -> str:
        return emit(builder, "div" if op == "true_div" else op, *args, **named)

    monkeypatch.setattr(GraphBuilder, "emit", emit_wrong)
    with pytest.raises(AssertionError, match="QuantizeLinear"):
        _check(28)
