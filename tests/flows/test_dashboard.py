"""What the dashboard of a terminal shows, at several sizes and moments."""

import io
from dataclasses import replace

from rich.console import Console

from retune.compiler.runtime.kernel_row import KernelRow
from retune.flows.cli.live import Dashboard
from retune.flows.events import PhaseAdvanced, PhaseStarted, RoundDone, RoundStarted, RunOpened

ROWS = tuple(KernelRow(f"task{index}", f"key{index}", index + 1, 2e9) for index in range(9))
OPENED = RunOpened("RUN", "resnet18", "/state", False, 0, 0.0, 0, ROWS, 200, None)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def done(index: int, best: float, trials: int, left: float = 60.0) -> RoundDone:
    row = replace(ROWS[index], rounds=1, trials=16, default_seconds=0.1, best_seconds=best)
    return RoundDone(index, row, 1, 0, trials, 200, 30.0, 0.04, 3, left)


def shown(dashboard: Dashboard, width: int = 120, height: int = 40) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=width, height=height, color_system=None).print(dashboard)
    return stream.getvalue().splitlines()


def test_the_bar_and_the_clock_go_on_between_events() -> None:
    clock = Clock()
    dashboard = Dashboard(clock)
    dashboard.note(OPENED)
    dashboard.note(done(0, 0.02, 50))
    last = shown(dashboard)[-1]
    for word in ("25%", "50/200 trials", "elapsed 30s", "left 1m00s"):
        assert word in last
    clock.now += 20
    last = shown(dashboard)[-1]
    assert "elapsed 50s" in last
    assert "left 40s" in last
    clock.now += 1000
    assert "left 0s" in shown(dashboard)[-1]


def test_a_budget_in_minutes_fills_with_time() -> None:
    clock = Clock()
    dashboard = Dashboard(clock)
    dashboard.note(replace(OPENED, trials_limit=None, seconds_limit=120.0))
    clock.now += 30
    assert dashboard.share == 0.25


def test_shares_speedups_and_the_active_task() -> None:
    dashboard = Dashboard(Clock())
    dashboard.note(OPENED)
    dashboard.note(done(0, 0.03, 16))
    dashboard.note(done(4, 0.002, 32))
    dashboard.note(RoundStarted(2, "task2", 2))
    lines = shown(dashboard)
    (first,) = [line for line in lines if "task0" in line]
    assert " 75.0%" in first
    assert "3.3x" in first
    assert any(line.lstrip().startswith("▸ task2") for line in lines)
    assert any("round 3: task2" in line for line in lines)


def test_the_ways_to_compute_a_layer_are_one_row_and_shares_add_up_to_the_network() -> None:
    """A round of one way also decides whether the others are behind; only its own row is sent."""
    names = ("conv", "winograd2_conv", "winograd4_conv", "dense")
    rows = [replace(ROWS[0], name=name, layer=layer) for name, layer in zip(names, ("a", "a", "a", ""), strict=True)]
    dashboard = Dashboard(Clock())
    dashboard.note(replace(OPENED, tasks=tuple(rows)))
    for index, best in ((0, 0.005), (1, 0.003), (2, 0.004), (3, 0.001)):
        row = replace(rows[index], trials=16, best_seconds=best)
        dashboard.note(replace(done(0, best, 16), index=index, task=row))
    dashboard.note(RoundStarted(0, "conv", 5))
    lines = [line.split() for line in shown(dashboard, width=90)[1:3]]
    assert [line[:4] for line in lines] == [["▸", "winograd2_conv", "75.0%", "48"], ["dense", "25.0%", "16", "1.00"]]
    assert not any("winograd4" in line or " conv " in line for line in shown(dashboard)[1:4])


def test_it_fits_small_terminals_and_keeps_what_matters() -> None:
    dashboard = Dashboard(Clock())
    dashboard.note(OPENED)
    dashboard.note(done(8, 0.03, 16))
    dashboard.note(RoundStarted(3, "task3", 2))
    lines = shown(dashboard, width=60, height=12)
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 60
    text = "\n".join(lines)
    for word in ("task8", "▸ task3", "and 7 more", "30.0"):
        assert word in text
    assert "task6" not in text


def test_80_columns_show_whole_headings_shares_and_the_estimate() -> None:
    names = ("conv2d_3x3_c64_1x56x56x64_add_relu", "winograd4_conv2d_3x3_c128_1x28x28x128_add_add_relu", "dense")
    dashboard = Dashboard(Clock())
    dashboard.note(replace(OPENED, tasks=tuple(replace(ROWS[0], name=name) for name in names)))
    dashboard.note(replace(done(0, 0.01, 16), task=replace(ROWS[0], name=names[0], trials=16, best_seconds=0.01)))
    second = replace(ROWS[0], name=names[1], trials=16, best_seconds=0.03)
    dashboard.note(replace(done(1, 0.03, 32), index=1, task=second))
    lines = shown(dashboard, width=80, height=24)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["task", "share", "trials", "ms", "GFLOP/s"]
    assert [line.split()[1] for line in lines[1:3]] == ["75.0%", "25.0%"], "the hottest kernel comes first"
    assert "winograd4_conv2d_3x3_c128" in lines[1]
    assert "add_add_relu" in lines[1]
    assert names[0] in lines[2]
    assert any("network > 40.0 ms (3 kernels not timed yet)" in line for line in lines)


def test_a_small_terminal_keeps_half_of_its_lines() -> None:
    dashboard = Dashboard(Clock())
    dashboard.note(replace(OPENED, tasks=ROWS * 4))
    assert len(shown(dashboard, width=80, height=34)) <= 17


def test_phases_after_the_search_count_their_pieces() -> None:
    dashboard = Dashboard(Clock())
    dashboard.note(OPENED)
    dashboard.note(PhaseStarted("confirming"))
    dashboard.note(PhaseAdvanced(3, 9))
    text = "\n".join(shown(dashboard))
    assert "confirming (3/9)" in text
    assert "trials  elapsed" not in text
