"""`retune report`, `retune runs` and `retune fetch`."""

import hashlib
import json
from pathlib import Path

import pytest

from retune.flows.cli.commands import output as command_output
from retune.storage.artifacts import ArtifactStore, content_key
from retune.storage.runs import RunLedger, append_round
from tests.support.flows.command_line import Refused, run
from tests.support.stored_runs import finished_run, interrupted_run


def test_a_page_is_written_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = finished_run(folder / "state", tasks=2)
    assert run(monkeypatch, "report", run_id, "-o", "page.html") == 0
    assert capsys.readouterr().out.strip() == str(folder / "page.html")
    assert run_id in (folder / "page.html").read_text()
    assert run(monkeypatch, "report", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    page = folder / "state" / "runs" / run_id / "report.html"
    assert told == {"run_id": run_id, "page": str(page), "is_complete": True}
    assert page.exists()


def test_an_unfinished_run_is_reported_as_far_as_it_came(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = interrupted_run(folder / "state")
    assert run(monkeypatch, "report", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["is_complete"] is False
    assert said.err == f"retune: run {run_id} has not come to its end; this is the report so far\n"


def test_runs_are_listed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = finished_run(folder / "state", tasks=1), interrupted_run(folder / "state")
    assert run(monkeypatch, "runs", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["run_id"] for row in rows] == [first, second]
    assert [row["tuned_seconds"] for row in rows] == [0.01, None]
    assert run(monkeypatch, "runs") == 0
    assert "not yet" in capsys.readouterr().out


def test_a_run_that_is_not_finished_has_the_trials_of_its_last_round(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = interrupted_run(folder / "state")
    append_round(folder / "state", run_id, {"round": 1, "trials": 16})
    append_round(folder / "state", run_id, {"round": 2, "trials": 32})
    assert run(monkeypatch, "runs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 32


@pytest.mark.parametrize("width", [80, 96, 110, 130, 145])
def test_a_run_takes_one_line_below_whole_headings(
    width: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(folder / "state", tasks=1)
    monkeypatch.setattr(command_output, "PIPE_WIDTH", width)
    assert run(monkeypatch, "runs") == 0
    heading, _, *lines = filter(str.strip, capsys.readouterr().out.splitlines())
    wide = {"threads": 110, "precision": 145, "ended UTC": 130, "untuned ms": 96}
    names = ("run", "network", "threads", "precision", "begun UTC", "ended UTC", "trials", "untuned ms", "tuned ms")
    shown = [name for name in names if wide.get(name, 0) <= width]
    assert [name.strip() for name in heading.split("  ") if name.strip()] == shown
    assert len(lines) == 1


@pytest.mark.parametrize("arguments", [("latest",), ("NOBODY",), ("latest", "-o", "missing/page.html")])
def test_report_refuses_wrong_arguments_in_one_sentence(
    arguments: tuple[str, ...], folder: Path, refused: Refused
) -> None:
    if "-o" in arguments:
        finished_run(folder / "state", tasks=1)
    refused("report", *arguments)


def kept_run(home: Path) -> tuple[str, str]:
    """A finished run that has put a file into the store: its id and the file's key."""
    ledger, files = RunLedger(home), {"small.retune": b"code"}
    with ledger.open_or_resume("kept", {"network": "small", "home": "/far"}) as opened:
        ArtifactStore(home).put(content_key(files), files)
        ledger.complete(opened.run_id, {"artifact": content_key(files)})
    return opened.run_id, content_key(files)


def test_files_of_a_run_are_fetched_whole_or_not_at_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    run_id, key = kept_run(folder / "state")
    assert run(monkeypatch, "fetch", run_id, "-o", "here", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"run_id": run_id, "file": str(folder / "here" / "small.retune")}
    assert (folder / "here" / "small.retune").read_bytes() == b"code"
    kept = folder / "state" / "artifacts"
    (kept / key / "small.retune").write_bytes(b"other")
    listed = {"small.retune": {"size": 5, "sha256": hashlib.sha256(b"other").hexdigest()}}
    (kept / f"{key}.json").write_text(json.dumps(listed))  # by somebody who knows how
    assert "are not those that it made" in refused("fetch", run_id, "-o", "there")
    assert not (folder / "there").exists()


def test_a_run_that_has_kept_nothing_says_where_its_files_are(folder: Path, refused: Refused) -> None:
    run_id = finished_run(folder / "state", tasks=1)
    assert f"{folder / 'state'}/runs/{run_id}" in refused("fetch")


def test_a_run_in_a_folder_has_no_key_but_the_path_of_its_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    with RunLedger(folder / "state").open_or_resume("local", {"network": "small", "home": "/near"}) as opened:
        RunLedger(folder / "state").complete(opened.run_id, {"artifact": "/near/runs/RUN/small.retune"})
    assert f"they are in /near/runs/{opened.run_id}" in refused("fetch")
    assert run(monkeypatch, "report", "-o", "page.html") == 0  # whose report.json somebody has removed
    assert opened.run_id in (folder / "page.html").read_text()


def test_runs_takes_a_limit_and_latest_is_one_with_something_to_show(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = interrupted_run(folder / "state")
    with RunLedger(folder / "state").open_or_resume("stopped at once", {"network": "small"}) as opened:
        pass
    assert run(monkeypatch, "report", "--json", "-o", "page.html") == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == shown
    assert run(monkeypatch, "runs", "--limit", "1", "--json") == 0
    (row,) = capsys.readouterr().out.splitlines()
    assert json.loads(row)["run_id"] == opened.run_id
