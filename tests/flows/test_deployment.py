"""The deployment file names a flow that exists and parameters that it has."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import PREFECT_API_URL

from compiler import config
from flows.tune_network import tune_network
from storage.parquet import ParquetRecordStore
from storage.runs import RunLedger
from tests.flows.networks import write_mlp

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "deployments" / "prefect.yaml"


def deployments() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    return found


def test_the_cpu_deployment_points_at_the_flow() -> None:
    (cpu,) = [each for each in deployments() if each["name"] == "cpu"]
    path, _, name = cpu["entrypoint"].partition(":")
    assert (ROOT / path).is_file()
    assert name == "tune_network"
    assert tune_network.name == "tune-network"


def test_its_parameters_are_those_of_the_flow() -> None:
    known = set(inspect.signature(tune_network.fn).parameters)
    for each in deployments():
        assert set(each.get("parameters", {})) <= known


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_api")
def test_the_readmes_commands_tune_a_network_on_a_worker(tmp_path: Path) -> None:
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"
    environment = config.child_environment(
        {
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
            "RETUNE_ROOT": str(ROOT),
            "RETUNE_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }
    )

    def prefect(*words: str) -> None:
        command = [sys.executable, "-m", "prefect", *words]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    prefect("work-pool", "create", "cpu-pool", "--type", "process")
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    parameters = ("--param", f"network={network}", "--param", "trials=8", "--param", "threads=1")
    prefect("deployment", "run", "tune-network/cpu", *parameters)
    prefect("worker", "start", "--pool", "cpu-pool", "--run-once")
    (run,) = RunLedger(home).list()
    assert run.is_complete
    assert len(ParquetRecordStore(home).records()) == 8
    assert (home / "runs" / run.run_id / "report.md").exists()
