"""What a person sees of a run, on a pipe and on a terminal."""

import io
import logging
from dataclasses import replace

from rich.console import Console

from retune.compiler.runtime.kernel_row import KernelRow
from retune.flows.cli.commands.output import Mode
from retune.flows.cli.json_view import event_line
from retune.flows.cli.live import LineView, LiveView, plain_line, show_events, view_for
from retune.flows.events import EVENT, LOGGER, RoundDone, RoundStarted, RunOpened, TaskStopped, duration

ROW = KernelRow("conv2d_3x3", "key", 4, 2e9)
TUNED = replace(ROW, rounds=1, trials=64, default_seconds=0.1, best_seconds=0.01)
OPENED = RunOpened("RUN", "resnet18", "/state", False, 0, 0.0, 0, (ROW,))
DONE = RoundDone(0, TUNED, 1, 2, 64, 200, 8.0, 0.04, 0, 17.0)


def test_the_line_of_a_round_says_all_that_matters() -> None:
    line = str(DONE)
    for word in ("conv2d_3x3", "64/200", "2 failed", "200.0 GFLOP/s", "network 40.0 ms", "left 17s"):
        assert word in line


def test_a_busy_machine_is_mentioned() -> None:
    assert "30% of its timings lost to others" in str(replace(DONE, contention=0.3))
    assert "other processes" not in str(replace(DONE, contention=0.01))


def test_a_latency_that_lacks_kernels_says_how_many() -> None:
    assert "network > 40.0 ms (1 kernel not timed yet)" in str(replace(DONE, untimed=1))
    assert "network > 40.0 ms (3 kernels not timed yet)" in str(replace(DONE, untimed=3))


def test_unknown_times_are_question_marks() -> None:
    assert duration(None) == "?"
    assert (duration(130.0), duration(3720.0)) == ("2m10s", "1h02m")


def test_a_pipe_gets_one_line_per_event() -> None:
    stream = io.StringIO()
    view = LineView(stream, plain_line)
    for event in (OPENED, RoundStarted(0, "conv2d_3x3", 0), DONE):
        view.show(event)
    assert stream.getvalue() == f"{OPENED}\n{DONE}\n"


def test_a_terminal_gets_lines_and_a_board_that_goes_away() -> None:
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=120), refreshes=0)
    for event in (OPENED, RoundStarted(0, "conv2d_3x3", 0), DONE, TaskStopped(0, "conv2d_3x3", "reason")):
        view.show(event)
    view.close()
    text = stream.getvalue()
    for word in ("10.0", "200.0", "given up: reason", "GFLOP/s", "left 17s"):
        assert word in text


def test_the_view_fits_the_reader() -> None:
    shown = {}
    for mode in Mode:
        stream = io.StringIO()
        view_for(stream, mode).show(DONE)
        shown[mode] = stream.getvalue()
    assert shown == {"people": f"{DONE}\n", "json": f"{event_line(DONE)}\n", "quiet": ""}


def test_events_travel_as_log_records() -> None:
    stream = io.StringIO()
    with show_events(stream):
        logging.getLogger(LOGGER).info("ignored")
        logging.getLogger(LOGGER).info(str(DONE), extra={EVENT: DONE})
    logging.getLogger(LOGGER).info(str(DONE), extra={EVENT: DONE})
    assert stream.getvalue() == f"{DONE}\n"
