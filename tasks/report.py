"""In: what a run spent and found. Out: its report, as files and as an artifact of the flow run.

Always: complete; what fell back to a default schedule is named.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from compiler.driver.report import Comparison, Report
from compiler.driver.tuning import TuningSummary
from compiler.driver.winners import Winner


@task(name="report", task_run_name="report-{run_id}", cache_policy=NO_CACHE)
def publish(
    run_id: str,
    request: Mapping[str, str | int | float | None],
    spent: TuningSummary,
    winners: Sequence[Winner],
    comparison: Comparison,
    artifact: Path,
    folder: Path,
) -> Report:
    """Write the report into the run's folder and show it in Prefect."""
    report = Report.of(run_id, request, spent, winners, comparison, artifact, folder)
    report.write()
    create_markdown_artifact(report.markdown(), key=f"report-{run_id.lower()}", description="Tuning report")
    return report
