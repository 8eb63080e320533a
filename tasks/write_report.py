"""Prefect tasks that write the report of a run: its files and its page.

A kernel that fell back to a default schedule is named in the report.
"""

from collections.abc import Mapping
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from retune.compiler.runtime.atomic_write import write_text_atomically
from retune.compiler.tune.report import CompiledResult, Report
from retune.compiler.tune.tuning import TuningSummary
from retune.compiler.tune.winners import Confirmation
from retune.storage.runs import RunLedger
from retune.storage.store_url import Location
from retune.tasks.report.facts import RunFacts, facts_of
from retune.tasks.report.page import page


@task(name="report", task_run_name="report", cache_policy=NO_CACHE)
def publish(
    run_id: str,
    request: Mapping[str, str | int | float | None],
    spent: TuningSummary,
    compiled: CompiledResult,
    folder: Path,
) -> Report:
    """Write the report into the run's folder."""
    report = Report.of(run_id, request, spent, compiled, folder)
    report.write()
    return report


@task(name="write-page", task_run_name="write-page", cache_policy=NO_CACHE)
def write_page(run_id: str, home: Location, folder: Path) -> RunFacts:
    """Write the page about a finished run into its folder."""
    facts = facts_of(home, RunLedger(home).get(run_id), folder)
    write_text_atomically(folder / "report.html", page(facts))
    return facts


@task(name="report", task_run_name="report-{run_id}", cache_policy=NO_CACHE)
def publish_operator(
    run_id: str, request: dict[str, str | int | float | None], spent: TuningSummary, winner: Confirmation, folder: Path
) -> Report:
    """Write an operator's report into the run's folder and show it in Prefect."""
    report = Report.of_operator(run_id, request, spent, winner, folder)
    report.write()
    create_markdown_artifact(report.markdown(), key=f"report-{run_id.lower()}", description="Tuning report")
    return report
