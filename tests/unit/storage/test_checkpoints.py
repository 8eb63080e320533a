"""What cost models learned and how rounds went, kept for later runs."""

import math
import os
import time
from pathlib import Path

import pytest

from retune.compiler.core.errors import StoreError
from retune.storage import checkpoints as checkpoints_module
from retune.storage.checkpoints import CheckpointStore
from retune.storage.query import ROUND_COLUMNS, connect, run_query
from retune.storage.runs import ROUNDS, RoundField, append_round, rounds_of


def test_a_run_finds_the_latest_of_its_place_before_it_began(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "llvm", "machine", 2, version=3)
    assert store.newest(before=math.inf) is None
    began = time.time() - 1
    store.save(b"one")
    store.save(b"two")
    assert store.newest(before=time.time() + 1) == b"two"
    assert store.newest(before=began) is None  # a run that is resumed does not see what came later
    for other in (("llvm", "machine", 1), ("llvm", "other", 2), ("llvm -mcpu=znver4", "machine", 2)):
        assert CheckpointStore(tmp_path, *other, version=3).newest(before=math.inf) is None


def test_old_training_data_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_module, "KEPT", 3)
    store = CheckpointStore(tmp_path, "llvm", "machine", 2, version=3)
    paths = [tmp_path / store.save(str(number).encode()) for number in range(5)]
    assert [path.exists() for path in paths] == [False, False, True, True, True]


def test_what_was_learned_from_other_features_is_out_of_sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_module, "KEPT", 1)
    older, newer = (CheckpointStore(tmp_path, "llvm", "machine", 2, version) for version in (3, 4))
    older.save(b"old")
    assert newer.newest(before=math.inf) is None
    newer.save(b"new")
    assert older.newest(before=math.inf) == b"old"
    assert newer.newest(before=math.inf) == b"new"


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_module, "KEPT", 2)
    store = CheckpointStore(tmp_path, "llvm", "machine", 2, version=3)
    now = time.time_ns()
    with monkeypatch.context() as ahead:
        ahead.setattr("ulid.time.time_ns", lambda: now + 86_400 * 10**9)
        store.save(b"of tomorrow")
    assert store.latest > time.time() + 80_000
    for number in range(4):
        store.save(str(number).encode())
    assert store.newest(before=math.inf) == b"3"


def row(number: int, elapsed: float, accuracy: float | None) -> dict[str, RoundField]:
    values: dict[str, RoundField] = dict.fromkeys(ROUND_COLUMNS, None)
    del values["run_id"]
    return {**values, "round": number, "elapsed": elapsed, "task_name": "conv", "model_pair_accuracy": accuracy}


def test_rounds_come_back_in_order_each_once(tmp_path: Path) -> None:
    assert rounds_of(tmp_path, "RUN") == []
    append_round(tmp_path, "RUN", row(0, 1.0, None))
    append_round(tmp_path, "RUN", row(1, 2.0, 0.7))
    append_round(tmp_path, "RUN", row(1, 3.0, 0.8))
    with (tmp_path / "runs" / "RUN" / ROUNDS).open("a") as file:
        file.write('{"round": 2, "elap')  # the power went
    found = rounds_of(tmp_path, "RUN")
    assert [(one["round"], one["model_pair_accuracy"], one["run_id"]) for one in found] == [
        (0, None, "RUN"),
        (1, 0.8, "RUN"),
    ]
    append_round(tmp_path, "RUN", row(2, 4.0, 0.9))
    assert [one["round"] for one in rounds_of(tmp_path, "RUN")] == [0, 1, 2]


def test_rounds_are_a_view(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    with connect(tmp_path) as empty:
        assert empty.execute("SELECT * FROM rounds").fetchall() == []
    for run, accuracy in (("A", 0.6), ("B", 0.9)):
        append_round(tmp_path, run, row(0, 1.0, None))
        append_round(tmp_path, run, row(1, 2.0, accuracy))
        append_round(tmp_path, run, row(1, 3.0, accuracy))
    with connect(tmp_path) as connection:
        assert [name for name, *_ in connection.execute("DESCRIBE rounds").fetchall()] == list(ROUND_COLUMNS)
        query = "SELECT run_id, count(*), avg(model_pair_accuracy) FROM rounds GROUP BY run_id ORDER BY run_id"
        assert connection.execute(query).fetchall() == [("A", 2, 0.6), ("B", 2, 0.9)]
    assert run_query(tmp_path, query)[1] == [("A", 2, 0.6), ("B", 2, 0.9)]


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        append_round(tmp_path, "RUN", row(0, 1.0, None))


@pytest.mark.parametrize("name", ["U" * 26, "ZZ" + "0" * 24, "7" + "Z" * 25, "notes"])
def test_files_of_other_names_are_no_training_data(name: str, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "llvm", "machine", 2, version=3)
    kept = tmp_path / store.save(b"one")
    kept.with_name(f"{name}.npz").write_bytes(b"stray")
    assert store.newest(before=math.inf) == b"one"
    store.save(b"two")
    assert (store.newest(before=math.inf), store.latest > 0) == (b"two", True)


def test_a_training_data_that_is_a_pipe_is_set_aside(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "llvm", "machine", 2, version=3)
    path = tmp_path / store.save(b"one")
    path.unlink()
    os.mkfifo(path)
    assert store.newest(before=math.inf) is None
    assert (tmp_path / "quarantine" / path.relative_to(tmp_path)).is_fifo()


@pytest.mark.parametrize(
    "line",
    ['{"round": 1e400}', "[" * 200_000, '{"round": "x"}', '{"round": 1, "latency": {}}', "null", '{"round": 1'],
    ids=["endless", "deep", "text", "object", "null", "cut"],
)
def test_a_damaged_line_costs_that_round_alone(line: str, tmp_path: Path) -> None:
    append_round(tmp_path, "r", {"round": 0, "latency": 1.0})
    with (tmp_path / "runs" / "r" / ROUNDS).open("a") as file:
        file.write(f"{line}\n")
    append_round(tmp_path, "r", {"round": 2, "latency": None})
    assert [row["round"] for row in rounds_of(tmp_path, "r")] == [0, 2]
