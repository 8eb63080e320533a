"""The nightly flow: the window goes to the networks that gain most, and ends in time."""

import logging
from pathlib import Path

import pytest
from prefect import flow

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError, RetuneError
from retune.compiler.tune.extract import extract_network
from retune.flows import retune_stale as module
from retune.flows.compact_records import compact_records
from retune.flows.parameters import TuneJob
from retune.flows.retune_stale import retune_stale
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import Location
from tests.support.flows.graphs import arrows, follow
from tests.support.flows.networks import write_mlp, write_unsupported
from tests.support.record_samples import timed

pytestmark = pytest.mark.usefixtures("prefect_api")


def write_records(network: str, home: Location) -> None:
    """What a short tuning leaves behind."""
    job = TuneJob.of(network, trials=1, threads=1, home=str(home))
    extracted = extract_network(job.network, job.target, job.threads)
    ParquetRecordStore(home).append(
        [
            timed(
                key,
                1e-3,
                network=network,
                target=job.target,
                device=job.device,
                threads=1,
                engine_version=config.engine_version(),
            )
            for key in extracted.task_keys
        ]
    )


def test_the_untuned_network_is_tuned_and_the_broken_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, new = str(write_mlp(tmp_path / "tuned.onnx")), str(write_mlp(tmp_path / "new.onnx", widths=(8, 24)))
    broken, home = str(write_unsupported(tmp_path / "broken.onnx")), tmp_path / "state"
    write_records(tuned, home)
    asked: list[str] = []

    @flow(name="tune-network")
    def quick(job: TuneJob) -> str:
        assert 0 < (job.options.minutes or 0) <= 2
        asked.append(job.network)
        write_records(job.network, Path(job.home))
        return job.network

    monkeypatch.setattr(module, "tune_job", quick)
    with pytest.raises(RetuneError, match=r"broken\.onnx could not be tuned: .*MaxRoiPool"):
        retune_stale(
            [tuned, broken, new], window_minutes=2.0, slice_minutes=2.0, least_gain=1e9, threads=1, home=str(home)
        )
    assert asked == [new]
    graph = arrows("retune-stale")
    follow(graph, ["judge-new", "tune-network", "judge-tuned", "judge-new"])
    before = ParquetRecordStore(home).records()
    assert compact_records(str(home)).rows == 0
    assert ParquetRecordStore(home).records() == before


def test_a_store_at_a_url_is_that_of_the_turns_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, place = str(write_mlp(tmp_path / "new.onnx")), "memory://retune-stale"
    asked: list[str] = []

    @flow
    def quick(job: TuneJob) -> str:
        asked.append(str(job.location))
        write_records(job.network, job.location)
        return job.network

    monkeypatch.setattr(module, "tune_job", quick)
    retune_stale([network], window_minutes=2.0, slice_minutes=2.0, least_gain=1e9, threads=1, home=place)
    assert asked == [place]


def test_empty_list_of_networks_tunes_nothing_with_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    logger = logging.getLogger("retune-stale")
    monkeypatch.setattr(logger, "warning", said.append)
    monkeypatch.setattr(module, "get_run_logger", lambda: logger)
    assert retune_stale([], home=str(tmp_path)) == []
    assert said == ["no networks are listed, so nothing is tuned: list yours in deployments/prefect.yaml"]


@pytest.mark.parametrize("window", [0.0, float("nan")])
def test_invalid_options_are_refused(window: float, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="window"):
        retune_stale(["mlp"], window_minutes=window, home=str(tmp_path))
