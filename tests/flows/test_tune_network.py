"""The whole flow in this process, on a temporary Prefect server: from an ONNX file to a compiled network."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from compiler.errors import DeviceError, ModelFormatError, OptionError
from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.network import CompiledNetwork
from compiler.runtime.cuda import why_not
from flows.tune_network import tune_network
from storage.parquet import ParquetRecordStore
from storage.runs import RunLedger
from tests.flows.networks import write_mlp

pytestmark = pytest.mark.usefixtures("prefect_api")


def test_a_network_is_tuned_compiled_and_verified_and_the_next_run_starts_warm(tmp_path: Path) -> None:
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"
    first = tune_network(str(network), trials=10, threads=1, home=str(home))
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

    second = tune_network(str(network), trials=400, threads=1, home=str(home), batch=4, early_stopping=8)
    assert 8 <= second.trials < 400
    records = ParquetRecordStore(home).records()
    assert second.run_id != first.run_id
    assert Counter(record.run_id for record in records) == {first.run_id: 10, second.run_id: second.trials}
    assert max(Counter((record.task_key, record.steps) for record in records).values()) == 1
    assert all(run.is_complete for run in RunLedger(home).list())
    known = {record.record_id for record in records}
    assert {task.record_id for task in second.tasks if task.record_id} <= known


def test_for_a_gpu_all_is_done_up_to_the_first_launch_and_then_it_is_said_what_is_missing(tmp_path: Path) -> None:
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
    with pytest.raises(OptionError, match="budget"):
        tune_network("mlp", trials=0, home=str(home))
    with pytest.raises(ModelFormatError, match=r"nothing\.onnx"):
        tune_network("nothing.onnx", trials=1, home=str(home))
    assert RunLedger(home).list() == ()
