"""The views that docs/how-to/analytics.md describes: what is in them."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from retune.storage.query import connect, run_query
from retune.storage.runs import RunLedger
from retune.storage.views import VIEWS
from tests.support.record_samples import DAY, RUN, UNFINISHED, write_store

DOCS = Path(__file__).parent.parent.parent.parent / "docs/how-to/analytics.md"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state folder with two runs."""
    return write_store(tmp_path / ".retune")


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
    assert rows == [(RUN, "mlp", False, 5, 2e-3), (UNFINISHED, "mlp", True, None, None)]


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_layers_say_which_precision_each_got(tmp_path: Path, scheme: str) -> None:
    store = f"{scheme}{tmp_path}"
    ledger = RunLedger(store)
    layers = [
        {"name": "conv", "op": "conv2d", "precision": "int8", "float32_seconds": 3e-3, "seconds": 1e-3, "error": 0.01}
    ]
    layers += [{"name": "head", "op": "dense", "precision": "float32", "float32_seconds": 2e-3, "seconds": None}]
    with ledger.open_or_resume("f", {"network": "net", "precision": "auto"}) as run:
        ledger.set_once(run.run_id, "precision", {"precision": "auto", "layers": layers})
    with ledger.open_or_resume("g", {"network": "other"}):
        pass
    sql = "SELECT layer, op, precision, float32_seconds / seconds AS speedup, error FROM layers WHERE network = 'net'"
    assert run_query(store, sql)[1] == [("conv", "conv2d", "int8", 3.0, 0.01), ("head", "dense", "float32", None, None)]
    assert run_query(store, "SELECT count(*) FROM layers")[1] == [(2,)]


def test_an_empty_store_has_all_views(tmp_path: Path) -> None:
    with connect(tmp_path) as sql:
        for view in VIEWS:
            assert sql.sql(f"SELECT * FROM {view.name}").fetchall() == []
