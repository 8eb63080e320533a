"""The report of a run on a terminal: the same facts as in `report.md`, made to fit the screen."""

from dataclasses import replace
from typing import TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from retune.compiler.runtime.kernel_row import NUMERIC, kernel_table
from retune.compiler.runtime.readable import busy_warning, cut_middle, milliseconds
from retune.compiler.tune.report import KERNEL_HEADINGS, Report
from retune.flows.cli.commands.output import console_on

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
    for each in report.comparison.contenders:
        error = "reference" if each.error is None else f"{each.error:.1e}"
        table.add_row(each.name, milliseconds(each.seconds), error)
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
