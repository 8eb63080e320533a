"""The deployment file names a flow that exists and parameters that it has."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect import Flow
from prefect.settings import PREFECT_API_URL

from compiler import config
from storage.parquet import ParquetRecordStore
from storage.runs import RunLedger
from tests.flows.networks import write_mlp

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "deployments" / "prefect.yaml"


def deployments() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    return found


@pytest.mark.parametrize("deployment", deployments(), ids=lambda each: str(each["name"]))
def test_a_deployment_names_a_flow_and_parameters_that_it_has(deployment: dict[str, Any]) -> None:
    path, _, name = deployment["entrypoint"].partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(flow, Flow)
    assert set(deployment.get("parameters", {})) <= set(inspect.signature(flow.fn).parameters)


def test_every_schedule_names_its_time_zone() -> None:
    schedules = [each for deployment in deployments() for each in deployment.get("schedules", [])]
    assert schedules
    assert all(ZoneInfo(each["timezone"]) and len(each["cron"].split()) == 5 for each in schedules)


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
