"""The whole flow in this process, on a temporary Prefect server: from an ONNX file to a compiled network."""

import json
import re
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

from retune.compiler.core import config
from retune.compiler.core.errors import DeviceError, ModelFormatError, OptionError
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.ir import Graph
from retune.compiler.runtime.cuda.driver import why_not
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.tune import extract
from retune.compiler.tune.report import Report
from retune.flows.tune_network import tune_network
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from tests.support.flows.graphs import arrows, follow
from tests.support.flows.networks import write_mlp

KINDS = {
    "budget-shown": "progress",
    "report-shown": "markdown",
    "kernels-shown": "table",
    "latency-shown": "image",
    "course-shown": "image",
}
"""The artifacts of a run by their keys."""

pytestmark = pytest.mark.usefixtures("prefect_api")


def test_a_network_is_tuned_compiled_and_verified_and_the_next_run_starts_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, home = write_mlp(tmp_path / "shown.onnx"), tmp_path / "state"
    stored = set(Path(PREFECT_LOCAL_STORAGE_PATH.value()).rglob("*"))
    imported: list[str] = []

    def watched(name: str, **given: Any) -> Graph:
        imported.append(name)
        return load_network(name, **given)

    monkeypatch.setattr(extract, "load_network", watched)
    first = tune_network(str(network), trials=10, threads=1, home=str(home))
    assert imported == [str(network)], "a run imports its network once"
    assert first.is_right
    assert first.trials == 10
    assert {each.name for each in first.comparison.contenders} >= {"untuned", "tuned"}
    assert [task.weight for task in first.tasks] == [1, 1]
    executor = GraphExecutor(CompiledNetwork.load(first.artifact), threads=1)
    executor.run()
    assert executor.get_output(0).shape == (2, 8)
    folder = Path(first.folder)
    assert json.loads((folder / "report.json").read_text())["run_id"] == first.run_id
    assert first.run_id in str(folder)

    for name in ("LOCAL_CHUNK", "WHOLE_ROUND"):  # rounds in two chunks, whatever the machine
        monkeypatch.setattr(f"retune.tasks.fleet.workers.{name}", 2)
    second = tune_network(str(network), trials=400, threads=1, home=str(home), batch=4, early_stopping=8)
    assert 8 <= second.trials < 400
    records = ParquetRecordStore(home).records()
    assert second.run_id != first.run_id
    assert Counter(record.run_id for record in records) == {first.run_id: 10, second.run_id: second.trials}
    assert max(Counter((record.task_key, record.steps) for record in records).values()) == 1
    assert all(run.is_complete for run in RunLedger(home).list())
    known = {record.record_id for record in records}
    assert {task.record_id for task in second.tasks if task.record_id} <= known
    see_what_prefect_shows(second, stored)
    see_the_order_of_a_run()


def see_what_prefect_shows(report: Report, stored: set[Path]) -> None:
    """A run has readable names and five artifacts in the database, and Prefect has kept no results."""
    with get_client(sync_client=True) as client:
        named = {"any_": ["tune-shown", "allocate-trials-shown", "compile-shown"]}
        runs = {
            run.id: run for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"name": named}))
        }
        assert len(runs) == 6, "two runs of three flows"
        assert {run.state_name for run in runs.values()} == {"Completed"}
        found = client.read_artifacts(artifact_filter=ArtifactFilter.model_validate({"key": {"any_": list(KINDS)}}))
        tuned = [run for run in runs.values() if run.name == "allocate-trials-shown"]
        newest = max(tuned, key=lambda run: str(run.created))
        of_newest = FlowRunFilter.model_validate({"id": {"any_": [newest.id]}})
        names = [run.name for run in client.read_task_runs(flow_run_filter=of_newest)]
        of_all = FlowRunFilter.model_validate({"id": {"any_": [*runs]}})
        tasks = Counter(run.name for run in client.read_task_runs(flow_run_filter=of_all))
    assert {runs[one.flow_run_id].name for one in found if one.flow_run_id} == {"tune-shown"}
    latest = {one.key: one for one in sorted(found, key=lambda one: str(one.created))}
    assert {key: one.type for key, one in latest.items()} == KINDS
    assert latest["budget-shown"].data == 100.0
    assert report.run_id in str(latest["report-shown"].data)
    assert [row["kernel"] for row in json.loads(str(latest["kernels-shown"].data))] != []
    for key in ("latency-shown", "course-shown"):
        picture = b64decode(str(latest[key].data).partition("base64,")[2])
        assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert tasks["extract-shown"] == 2, "once a run"
    for verb in ("sample", "build", "measure", "store", "train"):
        assert any(re.fullmatch(rf"{verb}-\d{{4}}-dense_[\w-]+", name) for name in names), (verb, names)
    assert set(Path(PREFECT_LOCAL_STORAGE_PATH.value()).rglob("*")) == stored


def see_the_order_of_a_run() -> None:
    """On Prefect's pages of the newest run every step follows the one before, a round's sample the training before."""
    top = ["extract", "allocate-trials", "compile-best", "report", "complete-run", "write-page"]
    follow(arrows("tune-shown"), [*top, "show-report"])
    graph = arrows("allocate-trials-shown")
    rounds = sorted(name.removeprefix("sample-") for name in graph if name.startswith("sample-"))
    assert len(rounds) >= 3
    before = "replay"
    for name in rounds:
        assert graph[f"sample-{name}"] == {before}
        builds = [each for each in graph if each.startswith(f"build-{name}")]
        assert len(builds) == 2
        for build in builds:
            assert graph[build] == {f"sample-{name}"}
            assert graph[build.replace("build", "measure", 1)] == {build}
        assert graph[f"store-{name}"] == {*builds, *(each.replace("build", "measure", 1) for each in builds)}
        assert graph[f"train-{name}"] == {f"store-{name}"}
        before = f"train-{name}"
    assert graph["save-checkpoint"] == {before}
    graph = arrows("compile-shown")
    again = [name for name in graph if name.startswith("time-again-")]
    follow(graph, ["best-records", *again, "confirm", "compile-untuned", "compile-tuned", "verify"])


def test_tuning_for_a_missing_gpu_fails_at_the_first_launch(tmp_path: Path) -> None:
    missing = why_not()
    if not missing:
        pytest.skip("there is a GPU here")
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"
    with pytest.raises(DeviceError, match=re.escape(missing[:30])):
        tune_network(str(network), trials=4, threads=1, target="cuda -arch=sm_90", home=str(home))
    (run,) = RunLedger(home).list()
    assert not run.is_complete
    assert len(list(ParquetRecordStore(home).records())) == 0


def test_a_mistake_raises_our_own_error_and_leaves_no_run_behind(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with pytest.raises(OptionError, match="must be"):
        tune_network("mlp", trials=0, home=str(home))
    with pytest.raises(ModelFormatError, match=r"nothing\.onnx"):
        tune_network("nothing.onnx", trials=1, home=str(home))
    assert RunLedger(home).list() == ()


@pytest.mark.long
def test_a_network_is_tuned_for_throughput_and_goes_on_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, home = str(write_mlp(tmp_path / "shared.onnx")), str(tmp_path / "state")
    asked: list[list[int]] = []

    def two(_: str, compiled: dict[int, Path], *__: object) -> int:
        asked.append(sorted(compiled))
        return max(compiled)

    monkeypatch.setattr("retune.flows.tune_network.measure_instances", two)
    monkeypatch.setattr(config, "usable_cores", lambda: 2)
    options: dict[str, Any] = {"trials": 6, "threads": 2, "home": home, "objective": "throughput"}
    report = tune_network(network, **options)
    assert report.is_right
    assert report.title.endswith("on 2 instances of 1 thread")
    assert Library.load(report.artifact).instances == 2
    assert Library.load(report.artifact).threads == 1
    (info,) = RunLedger(home).list()
    assert (info.describe["threads"], info.describe["instances"]) == (1, 2)
    assert asked == [[1, 2]]
    # As it was when the run was interrupted: what it had chosen is not measured again.
    RunLedger(home)._write(replace(info, completed=None, summary=None))
    assert tune_network(network, **options).run_id == report.run_id
    assert asked == [[1, 2]]
    with pytest.raises(OptionError, match="neither a fleet nor a GPU"):
        tune_network(network, **options, target="cuda -arch=sm_80")
