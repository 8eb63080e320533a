"""The flows beside tune-network: an operator, a network compiled again, a cost model trained from records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.model.boosted_trees import XGBOptions
from retune.compiler.model.features import FEATURE_VERSION
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.tune.report import Comparison
from retune.flows import retune_stale as module
from retune.flows.compile_network import compile_network
from retune.flows.events import RunOpened
from retune.flows.parameters import TuneJob
from retune.flows.retune_stale import retune_stale
from retune.flows.train_cost_model import train_cost_model
from retune.flows.tune_operator import tune_operator
from retune.storage.artifacts import ArtifactStore
from retune.storage.checkpoints import CheckpointStore
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from retune.tasks.fleet.plan import FleetPlan
from retune.tasks.report.facts import facts_of
from retune.tasks.report.page import page
from retune.tasks.verify import verify as verify_task
from tests.support.flows.command_line import run
from tests.support.flows.networks import write_mlp

pytestmark = pytest.mark.usefixtures("prefect_api")

OPERATOR = 'operator:["retune.matmul", 32, 48, 16]'


@pytest.mark.long
def test_an_operator_is_tuned_learned_and_tuned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "state"
    report = tune_operator("matmul", [32, 48, 16], trials=48, batch=16, threads=1, home=str(home))
    assert report.trials == 48
    assert 0 < report.best_seconds <= report.default_seconds
    records = ParquetRecordStore(home).records()
    assert len(records) == 48
    assert {record.task_key for record in records} == {'["retune.matmul", 32, 48, 16]'}
    (info,) = RunLedger(home).list()
    assert info.is_complete
    (kernel,) = json.loads((home / "runs" / info.run_id / "report.json").read_text())["tasks"]
    assert kernel["record_id"] == report.tasks[0].record_id == dict(info.summary or {})["record"]
    assert "gave the answers of its default schedule" in page(facts_of(home, info))

    trained = train_cost_model([OPERATOR], threads=1, home=str(home))
    assert (trained.tasks, trained.programs) == (1, 48)
    # A disturbed record is judged by nothing, unless most of them are.
    held_out = sorted(records, key=lambda record: (record.timestamp, record.record_id))[-10:]
    quiet = [record for record in held_out if not record.is_disturbed]
    learned = len(records) - len(held_out)
    if trained.judged == 0:  # a busy machine left too few for the first trees
        assert sum(record.is_disturbed for record in records) > learned - XGBOptions().warmup
    else:
        assert trained.judged == (len(quiet) if 2 * len(quiet) >= len(held_out) else len(held_out))
        assert trained.pair_accuracy is not None
        assert 0 <= trained.pair_accuracy <= 1
    job = TuneJob.of(OPERATOR, trials=1, threads=1, home=str(home))
    assert CheckpointStore(home, job.target, config.device_name(), 1, FEATURE_VERSION).newest(before=float("inf"))

    monkeypatch.setattr(module, "SHORTEST_SLICE", 0.05)
    limits: list[float | None] = []

    def watched(event: object) -> None:
        if isinstance(event, RunOpened):
            limits.append(event.seconds_limit)

    monkeypatch.setattr("retune.flows.allocate_trials.announce", watched)
    again = retune_stale([OPERATOR], window_minutes=0.1, slice_minutes=0.1, least_gain=0.0, threads=1, home=str(home))
    assert len(ParquetRecordStore(home).records()) > 48
    assert again[0].run_id != info.run_id
    # Of at most six seconds three are for the confirmation, and half for the rounds.
    assert limits[0] is not None
    assert 0.0 < limits[0] <= 3.0


@pytest.mark.long
@pytest.mark.parametrize("factor", [0.5, 2.0], ids=["faster", "slower"])
def test_a_network_is_compiled_with_what_is_known(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network called `untuned` too is compared with its baseline, not with itself. It has the programs found only
    where these make it faster as a whole.
    """
    network, home = write_mlp(tmp_path / "untuned.onnx"), tmp_path / "state"
    compared: dict[str, Path] = {}

    @task(cache_policy=NO_CACHE)
    def verify(name: str, paths: dict[str, Path], *others: Any) -> Comparison:
        compared.update(paths)
        found = verify_task.fn(name, paths, *others)
        untuned = found.seconds("untuned")
        timed = [replace(each, seconds=factor * untuned) if each.name == "tuned" else each for each in found.contenders]
        return replace(found, contenders=tuple(timed))

    monkeypatch.setattr("retune.flows.compile_network.verify", verify)
    report = compile_network(str(network), threads=1, home=str(home))
    assert report.is_right
    assert report.trials == 0
    assert all(record.is_unsearched for record in ParquetRecordStore(home).records())
    sources = {each.origin for each in CompiledNetwork.load(report.artifact).coverage}
    is_kept = factor > 1
    assert (sources == {"default"}) is is_kept
    assert report.speedup == 1 / (1 if is_kept else factor)
    assert ("The default schedules are kept" in report.markdown()) is is_kept
    assert all(task.origin_text == "default schedule" for task in report.tasks if task.used) is is_kept
    assert compared["tuned"] == Path(report.artifact)
    assert compared["untuned"] != compared["tuned"]
    assert all(path.name == "untuned.retune" and path.exists() for path in compared.values())
    assert all(info.is_complete for info in RunLedger(home).list())


def test_programs_for_a_gpu_are_confirmed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ConfirmingError(Exception):
        """In place of what would run on the GPU."""

    opened: list[int | None] = []

    def open_workers(_: MeasureOptions, plan: FleetPlan | None, gpu: int | None, *__: object) -> None:
        assert plan is None
        opened.append(gpu)
        raise ConfirmingError

    network, home = str(write_mlp(tmp_path / "small.onnx")), str(tmp_path / "state")
    for name in ("compile_network", "tune_operator"):
        monkeypatch.setattr(f"retune.flows.{name}.open_workers", open_workers)
    for target in ("cuda -arch=sm_80", None):
        with pytest.raises(ConfirmingError):
            compile_network(network, threads=1, home=home, target=target)
        with pytest.raises(ConfirmingError):
            tune_operator("matmul", [64, 48, 32], trials=1, threads=1, home=home, target=target)
    assert opened == [0, 0, None, None]


def test_stale_networks_are_not_judged_for_throughput(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="only tune-network chooses instances"):
        retune_stale(["mlp"], home=str(tmp_path), threads=1, objective="throughput")
    with pytest.raises(OptionError, match="an operator has no instances"):
        tune_operator("matmul", [32, 48, 16], home=str(tmp_path), threads=1, objective="throughput")


@pytest.mark.long
def test_what_a_run_on_an_object_store_has_made_is_fetched_on_another_machine(
    tmp_path: Path, s3_place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = write_mlp(tmp_path / "small.onnx")
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "one"))
    report = compile_network(str(network), threads=1, home=s3_place)
    (info,) = RunLedger(s3_place).list()
    assert info.summary
    assert ArtifactStore(s3_place).keys() == (info.summary["artifact"],)
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "two"))
    assert run(monkeypatch, "fetch", "latest", "--store", s3_place) == 0
    fetched = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in fetched] == ["report.json", "report.md", "small.retune"]
    assert {path.parent for path in fetched} == {tmp_path / "two" / "runs" / info.run_id}
    assert fetched[2].read_bytes() == Path(report.artifact).read_bytes()
    assert CompiledNetwork.load(fetched[2]).plan.name == "small"
    elsewhere = facts_of(s3_place, info, tmp_path / "three")
    assert elsewhere.latencies["tuned"] == report.comparison.seconds("tuned")


@pytest.mark.parametrize(("workload", "args", "said"), [("matrix", [1], "no operator"), ("matmul", [1], "inner")])
def test_an_operator_that_makes_no_sense(workload: str, args: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=said):
        tune_operator(workload, args, home=str(tmp_path))


def test_nothing_to_train_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no networks given"):
        train_cost_model([], home=str(tmp_path))
    with pytest.raises(OptionError, match="held out"):
        train_cost_model([OPERATOR], holdout=1.0, home=str(tmp_path))
