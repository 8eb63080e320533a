"""In: the report of a run. Out: tables on a stream. Always: the same facts as in `report.md`, made to fit a screen."""

import math
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from compiler.driver.report import Report
from flows.commands.output import PIPE_WIDTH


def show_report(report: Report, stream: TextIO) -> None:
    """Write what a run brought: the network's latencies, its kernels, and where everything lies."""
    console = Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, markup=False)
    console.print(_kernels(report))
    console.print(_latencies(report))
    console.print(
        f"tuned is {report.speedup:.2f} times as fast as untuned, "
        f"after {report.trials} trials in {report.elapsed:.0f} s",
        soft_wrap=True,
    )
    console.print(f"{report.coverage}", soft_wrap=True)
    if fallen := report.coverage.fallback_text():
        console.print(fallen, soft_wrap=True)
    if report.comparison.note:
        console.print(report.comparison.note, soft_wrap=True)
    if not report.is_right:
        console.print(f"THE OUTPUTS ARE WRONG: an error is larger than {report.comparison.tolerance:g}", soft_wrap=True)
    for name, path in (("network", report.artifact), ("records", report.records), ("report", report.folder)):
        console.print(f"{name:<8} {path}", soft_wrap=True)


def _latencies(report: Report) -> Table:
    table = _table(report.title)
    for heading in ("latency ms", "error of outputs"):
        table.add_column(heading, justify="right")
    for each in report.comparison.contenders:
        error = "reference" if each.error is None else f"{each.error:.1e}"
        table.add_row(each.name, _ms(each.seconds), error)
    return table


def _kernels(report: Report) -> Table:
    table = _table("kernel")
    for heading in ("uses", "trials", "default ms", "best ms", "GFLOP/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("served by", overflow="fold")
    for task in report.tasks:
        known = task.flops > 0 and math.isfinite(task.best_seconds)
        speed = f"{task.flops / task.best_seconds / 1e9:.1f}" if known else "-"
        served = task.served_by
        table.add_row(
            task.name,
            f"{task.weight}",
            f"{task.trials}",
            _ms(task.default_seconds),
            _ms(task.best_seconds),
            speed,
            f"{served} ({task.note})" if task.note else served,
        )
    return table


def _table(first: str) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column(first, overflow="fold")
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4f}" if math.isfinite(seconds) else "-"
