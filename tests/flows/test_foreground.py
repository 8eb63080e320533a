"""A whole run as `retune tune --json` and `--quiet` show it."""

import json
from pathlib import Path

import pytest

from retune.compiler.tune.extract import ImportedNetwork
from retune.flows.cli import foreground
from retune.flows.cli.commands.output import Mode
from retune.flows.parameters import TuneJob
from tests.support.flows.networks import write_mlp

pytestmark = pytest.mark.usefixtures("prefect_api")


ROWS_MODULE = """
from retune.compiler import auto_scheduler, te

@auto_scheduler.register_workload("row sums")
def row_sums(rows, columns):
    x, k = te.placeholder((rows, columns), name="x"), te.reduce_axis(columns, "k")
    return [x, te.compute((rows,), lambda i: te.sum(x[i, k], k), name="y")]
"""


def tune(folder: Path, mode: Mode, seed: int) -> int:
    network = write_mlp(folder / "small.onnx")
    job = TuneJob.of(str(network), trials=8, threads=1, batch=4, seed=seed, home=str(folder / "state"))
    return foreground.main(job, mode, network=ImportedNetwork(job.network))


@pytest.mark.long
def test_an_operator_of_a_module_is_tuned_and_a_killed_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.py").write_text(ROWS_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = 'operator:rows:["row sums", 32, 48]'
    job = TuneJob.of(line, trials=8, threads=1, batch=4, home=str(tmp_path / "state"))
    with monkeypatch.context() as killed:
        killed.setattr("retune.flows.tune_operator.confirm_operator", lambda *_, **__: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception, match="killed"):
            foreground.main(job, Mode.JSON)
    capsys.readouterr()
    assert foreground.main(job, Mode.JSON) == 0
    events = [json.loads(shown) for shown in capsys.readouterr().out.splitlines()]
    (opened,) = [event for event in events if event["event"] == "run_opened"]
    assert (opened["network"], opened["resumed"], opened["trials"]) == (line, True, 8)
    report = events[-1]
    assert (report["trials"], report["artifact"], report["speedup"] >= 1) == (8, "", True)
    assert report["run_id"] in (Path(report["folder"]) / "report.html").read_text(encoding="utf-8")
    job = TuneJob.of(line, trials=4, threads=1, batch=4, home=str(tmp_path / "state"))
    assert foreground.main(job, Mode.PEOPLE) == 0
    shown = capsys.readouterr().out
    assert "times as fast as untuned, after 4 trials" in shown
    assert "network  " not in shown
    assert "reference" not in shown


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
    phases = [event["text"].split()[0] for event in after if event["event"] == "phase_started"]
    # Where the tuned network is no faster, the default schedules are kept.
    assert [phase for phase in phases if phase != "keeping"] == [
        "storing",
        "selecting",
        "confirming",
        "compiling",
        "comparing",
        "measuring",
        "writing",
    ]
    report = events[-1]
    assert report["is_right"]
    assert report["limits"]["peak_gflops"] > 0
    page = Path(report["folder"]) / "report.html"
    assert report["run_id"] in page.read_text(encoding="utf-8")
    assert tune(tmp_path, Mode.QUIET, 1) == 0
    assert capsys.readouterr().out == ""
