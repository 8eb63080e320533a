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
from prefect import Flow, get_client
from prefect.settings import PREFECT_API_URL

from retune.compiler.core import config
from retune.compiler.measure.processes.device_lock import lock_name
from retune.compiler.tune.tuning_loop import Budget
from retune.flows.cli.pools import POOLS, QUEUES
from retune.flows.parameters import TuneJob
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from tests.support.flows.networks import write_mlp

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "deployments" / "prefect.yaml"


def deployments() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    return found


def flow_of(deployment: dict[str, Any]) -> Flow[Any, Any]:
    path, _, name = deployment["entrypoint"].partition(":")
    found = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(found, Flow)
    return found


def has_budget(deployment: dict[str, Any]) -> bool:
    return "minutes" in inspect.signature(flow_of(deployment).fn).parameters


def full_name(deployment: dict[str, Any]) -> str:
    return f"{flow_of(deployment).name}/{deployment['name']}"


@pytest.mark.parametrize("deployment", deployments(), ids=full_name)
def test_a_deployment_names_a_flow_and_parameters_that_it_has(deployment: dict[str, Any]) -> None:
    flow, given = flow_of(deployment), deployment.get("parameters", {})
    parameters = inspect.signature(flow.fn).parameters
    assert set(given) <= set(parameters)
    required = {name for name, one in parameters.items() if one.default is inspect.Parameter.empty}
    assert required <= set(given)
    assert flow.validate_parameters(given).items() >= given.items()


@pytest.mark.parametrize("deployment", deployments(), ids=full_name)
def test_a_deployment_is_described_and_limited_and_has_a_pool_that_is_made(deployment: dict[str, Any]) -> None:
    assert len(deployment["description"]) > 40
    assert "retune" in deployment["tags"]
    assert deployment["concurrency_limit"]["collision_strategy"] in ("ENQUEUE", "CANCEL_NEW")
    assert deployment["work_pool"]["name"] in {pool.name for pool in POOLS}
    assert deployment["work_pool"]["work_queue_name"] in QUEUES
    documentation = flow_of(deployment).fn.__doc__ or ""
    parameters = inspect.signature(flow_of(deployment).fn).parameters
    for name in set(parameters) - {"home", "shapes"}:
        assert f"`{name}`" in documentation or f"\n    {name}: " in documentation, name


def test_every_kind_of_job_has_a_deployment() -> None:
    assert {full_name(deployment) for deployment in deployments()} == {
        "tune-network/cpu",
        "tune-network/gpu",
        "tune-network/fleet",
        "tune-operator/cpu",
        "retune-stale/nightly",
        "compile-network/cpu",
        "train-cost-model/weekly",
        "compact-records/weekly",
    }


def test_deployments_are_documented() -> None:
    text = (ROOT / "docs/how-to/operations.md").read_text(encoding="utf-8")
    assert all(f"`{full_name(deployment)}`" in text for deployment in deployments())


@pytest.mark.parametrize("deployment", [*filter(has_budget, deployments())], ids=full_name)
def test_minutes_given_to_a_deployment_are_the_whole_budget(deployment: dict[str, Any]) -> None:
    """Parameters of a run are put over those of its deployment, which therefore sets no budget."""
    given = {**deployment["parameters"], "minutes": 30.0}
    budget = {name: given.get(name) for name in ("trials", "minutes")}
    assert TuneJob.of("mlp", **budget).budget == Budget(None, 1800.0)


def test_deployments_have_no_default_networks() -> None:
    listing = [deployment for deployment in deployments() if "networks" in deployment.get("parameters", {})]
    assert {full_name(deployment) for deployment in listing} == {"retune-stale/nightly", "train-cost-model/weekly"}
    for deployment in listing:
        assert deployment["parameters"]["networks"] == []
        assert [schedule["active"] for schedule in deployment["schedules"]] == [False]


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

    def retune(*words: str) -> str:
        return run("retune.flows.cli.app", *words)

    def prefect(*words: str) -> None:
        run("prefect", *words)

    def run(*words: str) -> str:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    retune("pools")  # another test may have made them
    assert retune("pools") == "everything was there already\n"
    with get_client(sync_client=True) as client:
        assert {pool.name for pool in client.read_work_pools()} >= {pool.name for pool in POOLS}
        assert client.read_global_concurrency_limit_by_name(lock_name()).limit == 1
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    with get_client(sync_client=True) as client:
        nightly = client.read_deployment_by_name("retune-stale/nightly")
        assert [schedule.active for schedule in nightly.schedules] == [False]
    parameters = ("--param", f"network={network}", "--param", "trials=8", "--param", "threads=1")
    prefect("deployment", "run", "tune-network/cpu", *parameters)
    prefect("worker", "start", "--pool", "cpu-pool", "--run-once")
    (ledger,) = RunLedger(home).list()
    assert ledger.is_complete
    assert len(ParquetRecordStore(home).records()) == 8
    assert (home / "runs" / ledger.run_id / "report.md").exists()
