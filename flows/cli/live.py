"""Views of a run: lines on a stream, a live table under them on a terminal, or JSON lines.

What a view shows comes from the events alone.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live

from retune.flows.cli.commands.output import Mode
from retune.flows.cli.dashboard import Dashboard
from retune.flows.cli.json_view import event_line
from retune.flows.progress import DETAILS, EVENT, LOGGER, Event

REFRESHES_PER_SECOND = 2.0
"""Enough for a clock that ticks; more would take time from the programs that are measured."""


class View:
    """What shows a run; this one shows nothing."""

    def show(self, event: Event) -> None:
        """Take note of one event."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class LineView(View):
    """Lines for logs, pipes and programs; an event may have none."""

    def __init__(self, stream: TextIO, line: Callable[[Event], str]) -> None:
        self._stream = stream
        self._line = line

    def show(self, event: Event) -> None:
        if line := self._line(event):
            self._stream.write(f"{line}\n")
            # A program that reads a pipe must see an event when it happens, not when a buffer is full.
            self._stream.flush()


def plain_line(event: Event) -> str:
    """What people read about an event."""
    return "" if isinstance(event, DETAILS) else str(event)


class LiveView(View):
    """Lines that scroll, and under them a dashboard that follows every event and the clock."""

    def __init__(self, console: Console, refreshes: float = REFRESHES_PER_SECOND) -> None:
        self._console = console
        self._dashboard = Dashboard()
        self._live = Live(
            self._dashboard,
            console=console,
            auto_refresh=refreshes > 0,
            refresh_per_second=refreshes or 1.0,
            # The final table of the report replaces the live table.
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, event: Event) -> None:
        """Write the event's line above the dashboard and bring the dashboard up to date."""
        self._dashboard.note(event)
        if self._dashboard.is_open and not self._live.is_started:
            self._live.start()
        if line := plain_line(event):
            self._console.print(line, highlight=False, markup=False)
        if self._live.is_started:
            self._live.refresh()

    def close(self) -> None:
        """Take the dashboard off the screen; the report shows its final state."""
        if self._live.is_started:
            self._live.stop()


class _EventHandler(logging.Handler):
    """Hands the events among the log records to a view."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.DEBUG)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, EVENT, None)
        if event is not None:
            self._view.show(event)


def view_for(stream: TextIO, mode: Mode) -> View:
    """What shows a run on `stream`: live on a terminal, line by line elsewhere, as JSON lines, or not at all."""
    if mode is Mode.JSON:
        return LineView(stream, event_line)
    if mode is Mode.QUIET:
        return View()
    return LiveView(Console(file=stream)) if stream.isatty() else LineView(stream, plain_line)


@contextmanager
def show_events(stream: TextIO, mode: Mode = Mode.PEOPLE) -> Iterator[View]:
    """Show the events of all flow runs of this process on `stream` until the block ends."""
    view = view_for(stream, mode)
    logger, handler = logging.getLogger(LOGGER), _EventHandler(view)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    # Prefect's handlers would print every event a second time.
    logger.propagate = False
    try:
        yield view
    finally:
        logger.level, logger.propagate = before
        logger.removeHandler(handler)
        view.close()
