"""The benchmark of orchestration calls the flow as it is, and watches functions that there are."""

from pathlib import Path

from benchmarks.flow_times import PARTS, STAGES
from benchmarks.orchestration import CASES, arguments
from retune.flows import tune_network
from retune.flows.parameters import TuneJob


def test_what_is_watched_exists() -> None:
    assert all(callable(getattr(tune_network, name)) for name in PARTS)
    assert all(callable(getattr(owner, method)) for owner, method in STAGES.values())


def test_the_flow_takes_the_arguments(tmp_path: Path) -> None:
    for name in CASES:
        given = arguments(name, 2, 0.5, 64, tmp_path)
        assert tune_network.tune_network.validate_parameters(given).items() >= given.items()
        assert TuneJob.of(**given).options.minutes == 0.5
