"""The views that docs/analytics.md describes: what is in them, and that every example there runs."""

import contextlib
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compiler.measure.record import MeasureRecord
from storage.parquet import ParquetRecordStore
from storage.query import connect, run_query
from storage.rounds import append_round
from storage.views import VIEWS
from tests.unit.storage.samples import failed, timed

DOCS = Path(__file__).parent.parent.parent.parent / "docs" / "analytics.md"
DAY = 1.75e9


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state folder with one finished run of two rounds on one task, a failure, and an unfinished run."""
    root = tmp_path / ".retune"
    first = timed("w0", 4e-3, mutation="default", round=0, run_id="A", elapsed=1.0, predicted=None)
    second = timed("w0", 1e-3, round=1, run_id="A", elapsed=2.0, predicted=0.9)
    third = timed("w0", 2e-3, round=1, run_id="A", elapsed=2.0, predicted=0.3, contention=0.2)
    said = "no answer within 10.5 s\nit was killed"
    lost = failed("w0", round=1, run_id="A", elapsed=2.0, predicted=0.95, error=said)
    again = failed("w0", round=1, run_id="A", elapsed=2.0, predicted=None, error="no answer within 11 s")
    ParquetRecordStore(root).append([first, second, third, lost, again])
    for number, latency in ((0, 8e-3), (1, 2e-3)):
        row: dict[str, str | int | float | None] = {
            "round": number,
            "task_name": "dense",
            "trials": 2,
            "elapsed": 60.0 * (number + 1),
            "latency": latency,
        }
        append_round(root, "A", row)
    write_run(root, "A", DAY + 60, second)
    write_run(root, "B", None, None)
    return root


def write_run(root: Path, run_id: str, completed: float | None, best: MeasureRecord | None) -> None:
    describe = {"network": "mlp", "target": "llvm", "device": "host", "threads": 2, "seed": 0}
    summary = {"trials": 5, "elapsed": 120.0, "untuned_seconds": 8e-3, "tuned_seconds": 2e-3, "is_right": True}
    entry = {"run_id": run_id, "fingerprint": "f", "describe": describe, "started": DAY, "resumed": []}
    entry |= {"completed": completed, "summary": summary if completed else None}
    folder = root / "runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    (root / "runs" / f"{run_id}.json").write_text(json.dumps(entry))
    if best:
        tasks = [{"record_id": best.record_id, "best_seconds": 1.5e-3, "name": "dense"}, {"record_id": ""}]
        (folder / "report.json").write_text(json.dumps({"run_id": run_id, "tasks": tasks}, indent=1))


def test_every_view_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert {view.name: view.doc for view in VIEWS} == {
        name: doc for name, doc in re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE) if name != "rounds"
    }


def test_progress_has_the_best_so_far(home: Path) -> None:
    _, rows = run_query(home, "SELECT trial, seconds, best_seconds FROM progress ORDER BY trial")
    assert [row[2] for row in rows] == [4e-3, 1e-3, 1e-3, 1e-3, 1e-3]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5]


def test_calibration_sets_scores_beside_speeds(home: Path) -> None:
    sql = "SELECT predicted, speed, predicted_rank, measured_rank FROM calibration ORDER BY predicted"
    _, rows = run_query(home, sql)
    assert rows == [(0.3, 0.5, 3, 2), (0.9, 1.0, 2, 1), (0.95, 0.0, 1, 3)]


def test_failures_that_differ_in_numbers_are_one_cause(home: Path) -> None:
    _, rows = run_query(home, "SELECT status_name, cause, trials, spent_seconds FROM failures")
    ((status, cause, trials, spent),) = rows
    assert (status, cause, trials) == ("RUN_TIMEOUT", "no answer within # s", 2)
    assert spent == pytest.approx(0.3)


def test_drift_compares_with_the_first_time_of_a_program(home: Path) -> None:
    _, rows = run_query(home, "SELECT day, trials, busy_share, timed_again, slowdown FROM drift ORDER BY day")
    day = datetime.fromtimestamp(DAY, UTC).date()
    assert rows == [(day, 5, 0.2, 3, pytest.approx(0.5))]


def test_gain_is_per_minute(home: Path) -> None:
    _, rows = run_query(home, "SELECT gained, gained_per_minute, seconds_spent FROM gain ORDER BY round")
    assert rows == [(None, None, 60.0), (0.75, 0.75, 60.0)]


def test_runs_say_what_came_of_them(home: Path) -> None:
    _, rows = run_query(home, "SELECT run_id, network, completed IS NULL, trials, tuned_seconds FROM runs ORDER BY 1")
    assert rows == [("A", "mlp", False, 5, 2e-3), ("B", "mlp", True, None, None)]


def test_an_empty_store_has_all_views(tmp_path: Path) -> None:
    with connect(tmp_path) as sql:
        for view in VIEWS:
            assert sql.sql(f"SELECT * FROM {view.name}").fetchall() == []


@pytest.mark.parametrize("sql", blocks("sql"))
def test_every_documented_query_runs_and_finds_something(sql: str, home: Path) -> None:
    columns, rows = run_query(home, sql)
    assert columns
    assert rows


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # DuckDB's way of making a pandas frame
@pytest.mark.parametrize("code", blocks("python"))
def test_every_documented_program_runs(code: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.parent)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, str(DOCS), "exec"), {})
    assert "dense" in said.getvalue() or "latency" in said.getvalue()
