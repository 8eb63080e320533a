"""A run of `tune-network` in the foreground of a terminal: shows its progress and its report.

The report has the same facts as `report.md`, made to fit the screen.
"""

import logging
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT, default_int_handler
from typing import TextIO

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from retune.compiler.runtime.kernel_row import NUMERIC, kernel_table
from retune.compiler.runtime.readable import busy_warning, cut_middle, milliseconds
from retune.compiler.tune.extract_dynamic import AnyImport
from retune.compiler.tune.operators import is_operator
from retune.compiler.tune.report import KERNEL_HEADINGS, Report
from retune.flows.cli import exits, launch
from retune.flows.cli.commands.output import Mode, console_on
from retune.flows.cli.json_view import report_line
from retune.flows.cli.live import show_events
from retune.flows.cli.state_folder import explain_disk_errors
from retune.flows.cli.toplevel import run_guarded
from retune.flows.parameters import TuneJob
from retune.flows.server.embedded_server import EmbeddedServer
from retune.flows.server.run_server import watch_server
from retune.flows.tune_network import tune_job
from retune.flows.tune_operator import tune_operator_job

WIDE = 110
"""Columns from which on a terminal has room for all columns of the table."""


def show_report(report: Report, stream: TextIO) -> None:
    """Write what a run brought: the network's latencies, its kernels, and where everything lies."""
    console = console_on(stream)
    console.print(_kernels(report, console.width))
    if unused := sum(not task.used for task in report.tasks):
        console.print(f"not used: {unused} more ways to compute these kernels; the report says why", soft_wrap=True)
    if warning := busy_warning(report.contention):
        console.print(warning, style="bold yellow", soft_wrap=True)
    if report.artifact:
        console.print(_latencies(report))
    console.print(
        f"tuned is {'roughly ' if warning else ''}{report.speedup:.2f} times as fast as untuned, "
        f"after {report.trials} trials in {report.elapsed:.0f} s",
        soft_wrap=True,
    )
    if report.artifact:
        console.print(f"{report.coverage}", soft_wrap=True)
    if fallen := report.coverage.fallback_text():
        console.print(fallen, soft_wrap=True)
    if report.comparison.note:
        console.print(report.comparison.note, soft_wrap=True)
    if not report.is_right:
        console.print(f"THE OUTPUTS ARE WRONG: an error is larger than {report.comparison.tolerance:g}", soft_wrap=True)
    for name, path in (("network", report.artifact), ("records", report.records)):
        if path:
            console.print(f"{name:<8} {path}", soft_wrap=True)
    page = report.page.absolute()
    console.print(f"{'report':<8}", Text(str(page), style=f"link {page.as_uri()}"), soft_wrap=True)


def _latencies(report: Report) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column(report.title, overflow="fold")
    for heading in (f"{report.heading} ms", "error of outputs"):
        table.add_column(heading, justify="right")
    for contender in report.comparison.contenders:
        error = "reference" if contender.error is None else f"{contender.error:.1e}"
        table.add_row(contender.name, milliseconds(contender.seconds), error)
    return table


def _kernels(report: Report, width: int) -> Table:
    """The kernels that are used; on a narrow terminal without the columns that the HTML report has too."""
    wide = width >= WIDE
    headings = tuple(h for h in KERNEL_HEADINGS if h != "share") if wide else ("kernel", "default ms", "ms", "origin")
    table = Table(box=box.SIMPLE)
    for heading in headings:
        if heading in NUMERIC:
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
        else:
            table.add_column(heading, overflow="fold")
    rows = [row if wide else replace(row, record_id="", note="") for row in report.tuned if row.used]
    for name, *cells in kernel_table(rows, headings):
        table.add_row(name if wide else cut_middle(name, max(20, width - 48)), *cells)
    return table


# Prefect needs a request or two to mark the run; supervisors such as Docker kill after ten seconds.
GRACE_SECONDS = 8.0
"""How long a run may take to tell a server at an address that it was stopped."""


def run(job: TuneJob, mode: Mode, server: EmbeddedServer | None, network: AnyImport | None) -> int:
    """Tune in this process, which runs nothing else, with Prefect's `server` or that at PREFECT_API_URL. Returns the
    exit code.
    """
    logging.getLogger().handlers.clear()  # Prefect's, which writes warnings in another form
    end_on_signals(has_address=server is None)
    code = run_guarded(partial(main, job, mode, server, network), launch.RESUMABLE)
    if code in (exits.UNAVAILABLE, exits.INTERRUPTED):  # Prefect would wait for its server once more
        sys.stdout.flush()
        os._exit(code)
    return code


def main(job: TuneJob, mode: Mode, server: EmbeddedServer | None = None, network: AnyImport | None = None) -> int:
    """Run the flow for `job` and print its report; `network` is that of the job, None for an operator. Returns the exit
    code.
    """
    # While Prefect's server starts. What a GPU or a fleet's device is, is found out later.
    if network is not None and job.plan is None and job.gpu is None:
        network.begin(job.target, job.threads, job.options.winograd)
    with watch_server(server), explain_disk_errors(Path(job.home)), show_events(sys.stdout, mode):
        report = tune_operator_job(job) if is_operator(job.network) else tune_job(job, network)
    if mode is Mode.JSON:
        typer.echo(report_line(report))
    elif mode is Mode.PEOPLE:
        show_report(report, sys.stdout)
    return exits.OK if report.is_right else exits.WRONG


def end_on_signals(*, has_address: bool) -> None:
    """Take both signals back from Prefect. A server at an address outlives them and is to hear of the run's end, so the
    flow is interrupted the ordinary way and has some time for it; the embedded server may be gone already.
    """
    launch.end_on_signals_within(GRACE_SECONDS if has_address else 0.0, launch.RESUMABLE)
    if has_address:
        launch.set_handler(SIGINT, default_int_handler)
