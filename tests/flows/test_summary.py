"""The report of a run on a terminal."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from retune.compiler.runtime.kernel_row import KernelRow, ProgramOrigin
from retune.compiler.tune.report import Comparison, Contender, Report
from retune.flows.cli import foreground
from retune.flows.cli.commands import output
from retune.flows.cli.foreground import show_report

HOT = "winograd4_conv2d_3x3_c128_1x28x28x128_add_add_relu"
RECORD = {"origin": ProgramOrigin.RECORD, "record_id": "01M82BMPGX8NBQE442RT3XEF4N"}
TASKS = (
    KernelRow("dense", "d", 1, 1e6, default_seconds=2e-4, best_seconds=1e-4, origin=ProgramOrigin.UNTESTED),
    KernelRow(HOT, "h", 2, 2e9, trials=64, default_seconds=40e-3, best_seconds=34.3524e-3, **RECORD),  # type: ignore[arg-type]
    KernelRow("unused", "u", 1, 2e9, default_seconds=1.0, best_seconds=1.0, note="not measured", used=False),
)


def report(folder: Path) -> Report:
    comparison = Comparison("untuned", (Contender("untuned", 0.1, None), Contender("tuned", 0.05, 1e-7)))
    request: dict[str, str | int | float | None] = {"network": "net", "threads": 2, "home": str(folder)}
    return Report("RUN", request, 64, 9.0, comparison, TASKS, "net.retune", "records", str(folder))


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_whole_headings_and_the_hottest_kernel_first(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", width)
    stream = io.StringIO()
    show_report(report(tmp_path), stream)
    text = stream.getvalue()
    lines = text.splitlines()
    heading = next(line for line in lines if "kernel" in line)
    assert "default ms      ms   " in heading
    assert "origin" in heading
    assert ("GFLOP/s" in heading) == (width == 140)
    first, second = (line for line in lines if "relu" in line or "dense" in line)
    assert "winograd4_conv2d" in first
    assert "34.4" in first
    assert "untested candidate" in second
    assert (str(RECORD["record_id"])[:12] in first) == (width == 140)
    assert "not used: 1 more ways to compute these kernels" in text
    assert "busy" not in text.replace(str(tmp_path), "")
    assert "tuned is 2.00 times as fast as untuned" in text


def test_contention_warning_precedes_the_latencies(tmp_path: Path) -> None:
    stream = io.StringIO()
    show_report(replace(report(tmp_path), contention=0.5), stream)
    assert 0 < stream.getvalue().index("busy (contention 50%)") < stream.getvalue().index("latency ms")
    assert "tuned is roughly 2.00 times as fast as untuned" in stream.getvalue()


def test_it_ends_with_a_link_to_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "report.html"
    stream = io.StringIO()
    show_report(report(tmp_path), stream)
    assert stream.getvalue().splitlines()[-1].split() == ["report", str(page)]
    terminal = io.StringIO()
    made = Console(file=terminal, force_terminal=True, color_system="standard", width=200, highlight=False)
    monkeypatch.setattr(foreground, "console_on", lambda _: made)
    show_report(report(tmp_path), terminal)
    assert f";{page.as_uri()}" in terminal.getvalue().splitlines()[-1]
