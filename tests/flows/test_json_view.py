"""What `--json` prints of a run: every field is documented, and what is documented is there."""

import json
import logging
import math
import re

import pytest

from retune.compiler.model import ModelMetrics
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.tune.report import Comparison, Contender, Report
from retune.flows.cli import json_view
from retune.flows.cli.commands.output import warn_in_one_line
from retune.flows.cli.json_view import event_fields, event_line, report_line
from retune.flows.events import Event, PhaseAdvanced, PhaseStarted, RoundDone, RoundStarted, RunOpened, TaskStopped

ROW = KernelRow("conv2d_3x3", "key", 4, 2e9)
EVENTS: tuple[Event, ...] = (
    RunOpened("RUN", "resnet18", "/state", False, 0, 0.0, 0, (ROW,), 200, None),
    RoundStarted(0, "conv2d_3x3", 0),
    RoundDone(0, ROW, 1, 2, 64, 200, 8.0, math.inf, 2, None, 0.0, ModelMetrics(1, 2, 0.5, 1, 0.5, 0.5)),
    TaskStopped(0, "conv2d_3x3", "reason"),
    PhaseStarted("comparing"),
    PhaseAdvanced(1, 2),
)


def report() -> Report:
    comparison = Comparison("ONNX Runtime", (Contender("untuned", 2e-3, 0.0), Contender("tuned", 1e-3, math.inf)))
    request = {"network": "mlp", "home": "/state"}
    return Report("RUN", dict(request), 1, 2.0, comparison, (), "a.retune", "records", "folder")


def documented(heading: str) -> set[str]:
    """The names in the list below a heading of the documentation."""
    text = str(json_view.__doc__).partition(f"### `{heading}`\n")[2].partition("\n#")[0]
    return set(re.findall(r"`(\w+)`", "".join(re.findall(r"^- .*$", text, re.MULTILINE))))


def test_every_field_of_every_event_is_documented() -> None:
    for event in EVENTS:
        fields = event_fields(event)
        assert documented(str(fields["event"])) == set(fields) - {"event"}
    task = event_fields(EVENTS[2])["task"]
    assert documented("task") == set(task)
    assert documented("report") == set(json.loads(report_line(report()))) - {"event"}


def test_lines_are_json_with_null_for_what_is_unknown() -> None:
    lines = [json.loads(event_line(event)) for event in EVENTS]
    assert [line["event"] for line in lines] == [
        "run_opened",
        "round_started",
        "round_done",
        "task_stopped",
        "phase_started",
        "phase_advanced",
    ]
    assert lines[2]["latency"] is None
    assert lines[0]["tasks"][0]["best_seconds"] is None
    assert json.loads(report_line(report()))["comparison"]["contenders"][1]["error"] is None


def test_the_fields_of_a_round_are_those_of_earlier_versions() -> None:
    assert event_fields(EVENTS[1]) == {"event": "round_started", "round": 0, "task": "conv2d_3x3"}
    done = event_fields(EVENTS[2])
    assert done.pop("task")["name"] == "conv2d_3x3"
    assert done == {
        "event": "round_done",
        "round": 0,
        "failed": 2,
        "trials": 64,
        "elapsed": 8.0,
        "seconds_left": None,
        "latency": math.inf,
        "latency_is_complete": False,
        "contention": 0.0,
    }


def test_a_warning_is_one_line_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logging, "lastResort", None)
    warn_in_one_line()
    logging.Logger("without handlers").warning("two\nlines about %s", "sftp://name:secret@host/x")
    assert capsys.readouterr() == ("", "retune: warning: two lines about sftp://name:***@host/x\n")
