"""`retune report` and `retune runs`."""

import json
from pathlib import Path

import pytest

from tests.flows.test_cli import folder, run
from tests.unit.tasks.pages.runs import finished_run, interrupted_run

__all__ = ["folder"]


def test_a_page_is_written_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = finished_run(folder / "state", tasks=2)
    assert run(monkeypatch, "report", run_id, "-o", "page.html") == 0
    assert capsys.readouterr().out.strip() == str(folder / "page.html")
    assert run_id in (folder / "page.html").read_text()
    assert run(monkeypatch, "report", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"run_id": run_id, "page": str(folder / "state" / "runs" / run_id / "report.html")}
    assert Path(told["page"]).exists()


def test_runs_are_listed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = finished_run(folder / "state", tasks=1), interrupted_run(folder / "state")
    assert run(monkeypatch, "runs", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["run_id"] for row in rows] == [first, second]
    assert [row["tuned_seconds"] for row in rows] == [0.01, None]
    assert run(monkeypatch, "runs") == 0
    assert "not yet" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("latest",), ("NOBODY",), ("latest", "-o", "missing/page.html")])
def test_mistakes_are_one_sentence(
    arguments: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "-o" in arguments:
        finished_run(folder / "state", tasks=1)
    assert run(monkeypatch, "report", *arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
