"""What the board of a terminal shows, at several sizes and moments."""

import io
import math
from dataclasses import replace

from rich.console import Console

from compiler.driver.tuning import TaskRow
from flows.board import Board
from flows.progress import PhaseAdvanced, PhaseStarted, RoundDone, RoundStarted, RunOpened

ROWS = tuple(TaskRow(f"task{index}", f"key{index}", index + 1, 2e9, 0, 0, math.inf, math.inf, "") for index in range(9))
OPENED = RunOpened("RUN", "resnet18", "/state", False, 0, 0.0, 0, ROWS, 200, None)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def done(index: int, best: float, trials: int, left: float = 60.0) -> RoundDone:
    row = replace(ROWS[index], rounds=1, trials=16, default_seconds=0.1, best_seconds=best)
    return RoundDone(index, row, 1, 0, trials, 200, 30.0, 0.04, False, left)


def shown(board: Board, width: int = 120, height: int = 40) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=width, height=height, color_system=None).print(board)
    return stream.getvalue().splitlines()


def test_the_bar_and_the_clock_go_on_between_events() -> None:
    clock = Clock()
    board = Board(clock)
    board.note(OPENED)
    board.note(done(0, 0.02, 50))
    last = shown(board)[-1]
    for word in ("25%", "50/200 trials", "elapsed 30s", "left 1m00s", "network > 40.000 ms"):
        assert word in last
    clock.now += 20
    last = shown(board)[-1]
    assert "elapsed 50s" in last
    assert "left 40s" in last
    clock.now += 1000
    assert "left 0s" in shown(board)[-1]


def test_a_budget_in_minutes_fills_with_time() -> None:
    clock = Clock()
    board = Board(clock)
    board.note(replace(OPENED, trials_limit=None, seconds_limit=120.0))
    clock.now += 30
    assert board.share == 0.25


def test_shares_speedups_and_the_active_task() -> None:
    board = Board(Clock())
    board.note(OPENED)
    board.note(done(0, 0.03, 16))
    board.note(done(4, 0.002, 32))
    board.note(RoundStarted(2, "task2", 2))
    lines = shown(board)
    (first,) = [line for line in lines if "task0" in line]
    assert " 75%" in first
    assert "3.3x" in first
    assert any(line.lstrip().startswith("▸ task2") for line in lines)
    assert any("round 3: task2" in line for line in lines)


def test_it_fits_small_terminals_and_keeps_what_matters() -> None:
    board = Board(Clock())
    board.note(OPENED)
    board.note(done(8, 0.03, 16))
    board.note(RoundStarted(3, "task3", 2))
    lines = shown(board, width=60, height=12)
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 60
    text = "\n".join(lines)
    for word in ("task8", "▸ task3", "and 6 more tasks", "30.000"):
        assert word in text
    assert "task6" not in text


def test_phases_after_the_search_count_their_pieces() -> None:
    board = Board(Clock())
    board.note(OPENED)
    board.note(PhaseStarted("confirming"))
    board.note(PhaseAdvanced(3, 9))
    text = "\n".join(shown(board))
    assert "confirming (3/9)" in text
    assert "trials  elapsed" not in text
