"""In: the events of a run. Out: lines on a stream, and on a terminal a table under them that stays up to date.

Always: what it draws comes from the events alone.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from compiler.driver.tuning import TaskRow
from flows.progress import (
    EVENT,
    LOGGER,
    Event,
    RoundDone,
    RoundStarted,
    RunOpened,
    TaskStopped,
    duration,
)


class View(Protocol):
    """Something that shows a run to a person."""

    def show(self, event: Event) -> None:
        """Take note of one event."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class PlainView:
    """One line per event, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        """Write the event's line, except the beginnings of rounds."""
        if not isinstance(event, RoundStarted):
            self._stream.write(f"{event}\n")
            self._stream.flush()

    def close(self) -> None:
        """Nothing is left open."""


class LiveView:
    """Lines that scroll, and a table of all tasks under them that is redrawn after every event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[TaskRow] = []
        self._active: int | None = None
        self._footer = ""
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, event: Event) -> None:
        """Write the event's line above the table and redraw the table."""
        match event:
            case RunOpened():
                self._rows = list(event.rows)
                self._footer = f"trials {event.trials}"
                self._live.start()
            case RoundStarted():
                self._active = event.index
            case RoundDone():
                self._rows[event.index] = event.row
                self._active = None
                self._footer = (
                    f"round {event.round}  trials {event.trials}  network {event.estimate}  "
                    f"elapsed {duration(event.elapsed)}  left {duration(event.seconds_left)}"
                )
            case TaskStopped():
                self._active = None
        if not isinstance(event, RoundStarted):
            self._console.print(str(event), highlight=False, markup=False)
        if self._live.is_started:
            self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        """Take the table off the screen; the report shows its final state."""
        if self._live.is_started:
            self._live.stop()

    def _table(self) -> Table:
        table = Table(caption=self._footer, caption_justify="left")
        table.add_column("task", no_wrap=True)
        for heading in ("uses", "rounds", "trials", "default ms", "best ms", "GFLOP/s"):
            table.add_column(heading, justify="right", no_wrap=True)
        for index, row in enumerate(self._rows):
            style = "bold" if index == self._active else "dim" if row.stop_reason else ""
            table.add_row(
                row.name,
                f"{row.weight}",
                f"{row.rounds}",
                f"{row.trials}",
                _cell(row.default_seconds * 1e3, 3),
                _cell(row.best_seconds * 1e3, 3),
                _cell(row.gflops, 1) if math.isfinite(row.best_seconds) else "-",
                style=style,
            )
        return table


def _cell(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


class _EventHandler(logging.Handler):
    """Hands the events among the log records to a view."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.DEBUG)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Show the record's event, if it carries one."""
        event = getattr(record, EVENT, None)
        if event is not None:
            self._view.show(event)


@contextmanager
def shown_on(stream: TextIO) -> Iterator[View]:
    """Show the events of all flow runs of this process on `stream` until the block ends: live on a terminal, else
    line by line.
    """
    view: View = LiveView(Console(file=stream)) if stream.isatty() else PlainView(stream)
    logger, handler = logging.getLogger(LOGGER), _EventHandler(view)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield view
    finally:
        logger.level, logger.propagate = before
        logger.removeHandler(handler)
        view.close()
