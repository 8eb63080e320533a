"""Random small operators are tuned; every program that the search proposes computes the definition."""

import pytest

from retune.compiler.measure.processes.worker_process import WorkerProcess
from tests.support.property.checks import Verdict
from tests.support.property.tuned import tuned


def verdicts_of(seed: int) -> list[Verdict]:
    """All verdicts about an operator, as a worker can send them."""
    return list(tuned(seed))


def _tune(seeds: range) -> int:
    right = 0
    with WorkerProcess() as worker:
        for seed in seeds:
            for verdict in worker.call("tests.property.test_tuned:verdicts_of", seed, timeout_s=300.0):
                assert verdict.failure == "", f"seed {seed}: {verdict.failure}"
                right += not verdict.refusal
    return right


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 8, 2))
def test_random_operators_are_tuned(first: int) -> None:
    assert _tune(range(first, first + 2)) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 50))
def test_two_thousand_random_operators_are_tuned(first: int) -> None:
    assert _tune(range(first, first + 50)) >= 150
