"""The report of a run on a terminal: the same facts as in `report.md`, made to fit the screen."""

import math
from typing import TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from retune.compiler.driver.report import Report
from retune.compiler.runtime.readable import busy_warning, cut_middle, milliseconds
from retune.flows.commands.output import console_on

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
    table = Table(box=box.SIMPLE)
    table.add_column("kernel", overflow="fold")
    timed = "confirmed ms" if wide else "ms"
    headings = ("uses", "trials", "default ms", timed, "GFLOP/s") if wide else ("default ms", timed)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    table.add_column("served by", overflow="fold")
    for task in report.hottest:
        if not task.used:
            continue
        known = task.flops > 0 and math.isfinite(task.best_seconds)
        cells = {
            "uses": f"{task.weight}",
            "trials": f"{task.trials}",
            "default ms": milliseconds(task.default_seconds),
            timed: milliseconds(task.best_seconds),
            "GFLOP/s": f"{task.flops / task.best_seconds / 1e9:.1f}" if known else "-",
        }
        tuned = bool(task.record_id) and not task.guessed
        served = f"{task.served_by}{f' ({task.note})' if task.note else ''}" if wide else task.served_by
        served = "tuned record" if tuned and not wide else served
        name = task.name if wide else cut_middle(task.name, max(20, width - 48))
        table.add_row(name, *(cells[heading] for heading in headings), served)
    return table
