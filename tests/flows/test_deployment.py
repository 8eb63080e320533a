"""The deployment file names a flow that exists and parameters that it has."""

import inspect
from pathlib import Path
from typing import Any

import yaml

from flows.tune_network import tune_network

FILE = Path(__file__).parent.parent.parent / "deployments" / "prefect.yaml"


def deployments() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    return found


def test_the_cpu_deployment_points_at_the_flow() -> None:
    (cpu,) = [each for each in deployments() if each["name"] == "cpu"]
    path, _, name = cpu["entrypoint"].partition(":")
    assert (FILE.parent.parent / path).is_file()
    assert name == "tune_network"
    assert tune_network.name == "tune-network"


def test_its_parameters_are_those_of_the_flow() -> None:
    known = set(inspect.signature(tune_network.fn).parameters)
    for each in deployments():
        assert set(each.get("parameters", {})) <= known
