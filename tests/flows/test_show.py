"""What Prefect's UI is given of a run."""

import math
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from prefect import flow, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import Artifact

from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.tune.report import Comparison, Contender, Report
from retune.flows.parameters import TuneJob
from retune.tasks.show import ProgressBar, data_url, key_of, show_report


def outcome(name: str, weight: int, seconds: float) -> KernelRow:
    return KernelRow(name, name, weight, 1e9, trials=16, default_seconds=0.1, best_seconds=seconds)


def report() -> Report:
    comparison = Comparison("untuned", (Contender("untuned", 0.1, None), Contender("tuned", 0.01, 0.0)))
    tasks = (outcome("small", 1, 1e-3), outcome("large", 9, 1e-3), outcome("unknown", 1, math.inf))
    request: dict[str, str | int | float | None] = {"network": "mlp", "threads": 2, "home": "/state"}
    return Report("RUNID", request, 16, 3.0, comparison, tasks, "mlp.retune", "records", "folder")


def artifacts(key: str) -> list[Artifact]:
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))


def test_kernels_are_listed_by_what_they_cost() -> None:
    rows = report().kernel_table(("kernel", "share", "ms", "GFLOP/s"))
    assert rows[0] == ("large", "90.0%", "1.00", "1000.0")
    assert rows[1:] == [("small", "10.0%", "1.00", "1000.0"), ("unknown", "-", "-", "-")]


def test_a_picture_is_an_address() -> None:
    kind, _, data = data_url("<svg/>").partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert ElementTree.fromstring(b64decode(data)).tag == "svg"


def test_keys_are_what_prefect_accepts() -> None:
    assert key_of("report", "resnet18") == "report-resnet18"
    assert key_of("report", "/far/away/My_Net v2.onnx") == "report-my-net-v2"
    assert key_of("report", "…") == "report-network"


def test_networks_are_called_by_short_names() -> None:
    assert TuneJob.of("resnet18").label == "resnet18"
    assert TuneJob.of("/far/away/my.model.onnx").label == "my.model"


@pytest.mark.usefixtures("prefect_api")
def test_a_run_shows_its_progress_and_its_report(tmp_path: Path) -> None:
    network = f"/far/away/{tmp_path.name}.onnx"
    key = tmp_path.name.replace("_", "-")

    @flow
    def small() -> None:
        bar = ProgressBar.begun("RUN", network)
        bar.show(0.4)
        bar.show(7.0)
        show_report(replace(report(), request={**report().request, "network": network}), ((0.0, 0.2), (1.0, 0.1)))

    small()
    small()  # another run makes further versions of the same artifacts
    (bar, _) = artifacts(f"budget-{key}")
    assert (bar.type, bar.data) == ("progress", 100.0)
    kinds = {name: artifacts(f"{name}-{key}")[0].type for name in ("report", "kernels", "latency", "course")}
    assert kinds == {"report": "markdown", "kernels": "table", "latency": "image", "course": "image"}
    course, _ = artifacts(f"course-{key}")
    picture = ElementTree.fromstring(b64decode(str(course.data).partition(",")[2]))
    assert "Estimated latency" in "".join(picture.itertext())
