"""A whole run as `retune tune --json` and `--quiet` show it."""

import json
from pathlib import Path

import pytest

from retune.flows import foreground
from retune.flows.commands.output import Mode
from retune.flows.parameters import TuneJob
from tests.support.flows.networks import write_mlp

pytestmark = pytest.mark.usefixtures("prefect_api")


def tune(folder: Path, mode: Mode, seed: int) -> int:
    network = write_mlp(folder / "small.onnx")
    job = TuneJob.of(str(network), trials=8, threads=1, batch=4, seed=seed, home=str(folder / "state"))
    return foreground.main(mode, json.dumps(job.parameters()))


@pytest.mark.long
def test_programs_read_events_and_then_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(tmp_path, Mode.JSON, 0) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "phase_started"
    assert kinds[-1] == "report"
    assert kinds.count("run_opened") == 1
    rounds = [event for event in events if event["event"] == "round_done"]
    assert rounds[-1]["trials"] == 8
    assert [event["round"] for event in rounds] == list(range(len(rounds)))
    assert {"done": 2, "total": 2, "event": "phase_advanced"} in events
    after = events[events.index(rounds[-1]) + 1 :]
    assert [event["text"].split()[0] for event in after if event["event"] == "phase_started"] == [
        "storing", "selecting", "confirming", "compiling", "comparing", "measuring", "writing"
    ]  # fmt: skip
    report = events[-1]
    assert report["is_right"]
    assert report["limits"]["peak_gflops"] > 0
    page = Path(report["folder"]) / "report.html"
    assert report["run_id"] in page.read_text(encoding="utf-8")
    assert tune(tmp_path, Mode.QUIET, 1) == 0
    assert capsys.readouterr().out == ""
