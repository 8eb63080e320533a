"""The whole flow for a GPU that is not there: its worker process executes the PTX of every program on the CPU."""

from pathlib import Path
from typing import Any

import pytest

from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.runner import CudaRunner
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.flows.tune_network import tune_network
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from tests.support.fake_cuda import DEVICE
from tests.support.flows.networks import write_mlp

pytestmark = pytest.mark.usefixtures("prefect_api")


@pytest.fixture(name="gpu")
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process that would use a GPU uses the double."""
    called = WorkerProcess.call

    def call(self: WorkerProcess, function: str, *arguments: Any, **options: Any) -> Any:
        return called(
            self,
            function.replace("retune.compiler.tune.compare:", "tests.support.ptx_worker:"),
            *arguments,
            **options,
        )

    monkeypatch.setattr(CudaRunner, "worker", "tests.support.ptx_worker")
    monkeypatch.setattr(WorkerProcess, "call", call)


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_a_network_is_tuned_for_a_gpu_compiled_and_verified(tmp_path: Path) -> None:
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"
    report = tune_network(str(network), trials=8, batch=4, threads=1, target="cuda", home=str(home))
    assert report.is_right
    assert report.trials == 8
    records = list(ParquetRecordStore(home).records())
    assert {(record.target, record.device) for record in records} == {(f"cuda -arch={DEVICE.arch}", DEVICE.identity)}
    assert {record.status for record in records} == {MeasureStatus.OK}
    compiled = CompiledNetwork.load(report.artifact)
    assert {call.device for call in compiled.plan.calls} == {1}
    assert {each.name for each in report.comparison.contenders} >= {"untuned", "tuned"}
    (run,) = RunLedger(home).list()
    assert run.is_complete
