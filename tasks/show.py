"""Artifacts of a run for Prefect's UI: its progress, the report, its kernels as a table, its charts as images.

Each is a request to the API, so a run makes few of them, at most one a round.
"""

import re
from base64 import b64encode
from dataclasses import dataclass
from pathlib import PurePath
from typing import Self
from uuid import UUID

from prefect import task
from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE

from retune.compiler.tune.report import KERNEL_HEADINGS, Report
from retune.tasks.report.charts import latency_chart, network_chart


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """A bar in the UI that is filled as the budget is spent. It belongs to the flow run that began it; another run may
    fill it.
    """

    artifact: UUID

    @classmethod
    def begun(cls, run_id: str, network: str) -> Self:
        """An empty bar of the present flow run."""
        description = f"How much of the budget for {network} is spent by run {run_id}"
        made = create_progress_artifact(0.0, key=key_of("budget", network), description=description)
        assert isinstance(made, UUID)  # only in an asynchronous flow it is something to be awaited
        return cls(made)

    def show(self, spent: float) -> None:
        """Fill the bar up to the share `spent`, 0 to 1."""
        update_progress_artifact(self.artifact, round(min(1.0, max(0.0, spent)) * 100, 1))


@task(name="show-report", task_run_name="show-report", cache_policy=NO_CACHE)
def show_report(report: Report, progress: tuple[tuple[float, float], ...]) -> None:
    """Show a finished run; `progress` pairs seconds spent with the estimated latency of the network."""
    network = str(report.request["network"])
    create_markdown_artifact(report.markdown(), key=key_of("report", network), description="Tuning report")
    rows = [dict(zip(KERNEL_HEADINGS, row, strict=True)) for row in report.kernel_table()]
    create_table_artifact(rows, key=key_of("kernels", network), description="Kernels of the network")
    latencies = {contender.name: contender.seconds for contender in report.comparison.contenders}
    charts = {
        "latency": (latency_chart(latencies, alone=True), "Latency, untuned, tuned, and in other libraries"),
        "course": (network_chart(progress, latencies, alone=True), "Estimated latency of the network during tuning"),
    }
    for kind, (chart, description) in charts.items():
        if chart:
            create_image_artifact(data_url(chart), key=key_of(kind, network), description=description)


def key_of(kind: str, network: str) -> str:
    """The name of an artifact: runs of the same network are its versions. Only small letters, digits and dashes."""
    # Prefect's server refuses any other letters in a key.
    words = re.sub(r"[^a-z0-9]+", "-", PurePath(network).stem.lower()).strip("-")
    return f"{kind}-{words or 'network'}"


def data_url(svg: str) -> str:
    """A picture as an address that needs no server."""
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
