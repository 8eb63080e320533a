"""Views of a run: lines on a stream, a live table under them on a terminal, or JSON lines.

What a view shows comes from the events and a clock alone. The live table has the layers, what the run does now, and how
far it is; it fits the terminal, whatever its size.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.runtime.readable import cut_middle
from retune.flows.cli.commands.output import Mode
from retune.flows.cli.json_view import event_line
from retune.flows.events import (
    DETAILS,
    EVENT,
    LOGGER,
    Event,
    PhaseAdvanced,
    PhaseStarted,
    RoundDone,
    RoundStarted,
    RunOpened,
    TaskStopped,
    duration,
)

# The columns that answer "how far, how fast" have 0; what the report shows as well needs a wider terminal.
COLUMNS = (
    (60, "share", 6), (110, "uses", 4), (0, "trials", 6), (110, "default ms", 10), (0, "ms", 7), (96, "speedup", 7),
    (0, "GFLOP/s", 7),
)  # fmt: skip
"""Width of the terminal from which on a column is shown, its heading, and its own width."""

NAME_WIDTH = 50
"""Letters of the longest name; a longer name is cut in the middle."""

CHROME = 6
"""Lines of the dashboard that are not rows of tasks."""


class Dashboard:
    """The state of a run as a person wants to see it. Something that rich can print."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: list[KernelRow] = []
        self._active: int | None = None
        self._activity = "starting"
        self._pieces: tuple[int, int] | None = None
        self._limits: tuple[int | None, float | None] = (None, None)
        self._trials = 0
        self._estimate = ""
        self._elapsed, self._left = 0.0, math.inf
        self._since = clock()
        self._tuning = False
        self._spinner = Spinner("dots")

    @property
    def is_open(self) -> bool:
        """Whether there are tasks to be shown."""
        return bool(self._rows)

    def note(self, event: Event) -> None:
        match event:
            case RunOpened():
                self._rows = list(event.tasks)
                self._limits = event.trials_limit, event.seconds_limit
                self._tuning = True
                self._pieces = None
                self._stand(event.trials, event.elapsed, None)
            case RoundStarted():
                self._active = event.index
                self._activity = f"round {event.round + 1}: {event.task}"
            case RoundDone():
                self._rows[event.index] = event.task
                self._active = None
                self._estimate = event.estimate
                self._stand(event.trials, event.elapsed, event.seconds_left)
            case TaskStopped():
                self._active = None
            case PhaseStarted():
                self._activity, self._pieces = event.text, None
                self._tuning = False
                self._active = None
            case PhaseAdvanced():
                self._pieces = event.done, event.total

    def _stand(self, trials: int, elapsed: float, left: float | None) -> None:
        self._trials, self._elapsed = trials, elapsed
        self._left = math.inf if left is None else left
        self._since = self._clock()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        network = Text(f"  network {self._estimate or '?'}", no_wrap=True, overflow="ellipsis")
        yield Group(self._table(width, console.size.height), network, self._now(width), self._progress(width))

    def _now(self, width: int) -> RenderableType:
        pieces = f" ({self._pieces[0]}/{self._pieces[1]})" if self._pieces else ""
        self._spinner.update(text=Text(f" {cut_middle(self._activity + pieces, width - 4)}"))
        return self._spinner

    def _progress(self, width: int) -> RenderableType:
        """The bar of the budget, or of the phase that goes on, with the words that belong to it."""
        if not self._tuning:
            done, total = self._pieces or (0, 0)
            return ProgressBar(total=float(total) if total else None, completed=float(done), pulse=not total, width=30)
        # The clock goes on between events: a round may take a minute, and a bar that stands looks like a hang.
        passed = self._clock() - self._since
        elapsed, left = self._elapsed + passed, max(0.0, self._left - passed)
        trials = f"{self._trials}" + (f"/{self._limits[0]}" if self._limits[0] else "")
        words = f"{self.share:4.0%}  left {duration(left)}  {trials} trials  elapsed {duration(elapsed)}"
        line = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=1.0, completed=self.share, width=max(4, min(30, width - len(words) - 4)))
        line.add_row(bar, Text(words, no_wrap=True, overflow="ellipsis"))
        return line

    @property
    def share(self) -> float:
        """How much of the budget is spent, 0 to 1: of the limit that is nearer."""
        trials, seconds = self._limits
        elapsed = self._elapsed + self._clock() - self._since
        return min(1.0, max(self._trials / trials if trials else 0.0, elapsed / seconds if seconds else 0.0))

    def _table(self, width: int, height: int) -> Table:
        columns = [(heading, letters) for least, heading, letters in COLUMNS if width >= least]
        room = width - 2 - sum(letters + 2 for _, letters in columns)
        names = max(12, min(NAME_WIDTH, room - 2, max((len(row.name) for row in self._rows), default=0)))
        table = Table(box=None, padding=(0, 1), header_style="dim")
        table.add_column("  task", no_wrap=True, width=names + 2)
        for heading, letters in columns:
            table.add_column(heading, justify="right", no_wrap=True, width=letters)
        layers = self._layers()
        # Half of the screen, so that the lines above stay readable; at least three rows, whatever the height.
        shown = _first(layers, max(3, height // 2 - CHROME))
        whole = sum(row.weighted_seconds for row, _ in layers)
        for row, is_active in shown:
            style = "bold" if is_active else "dim" if row.stop_reason else ""
            marked = f"{'▸' if is_active else ' '} {cut_middle(row.name, names)}"
            cells = row.cells(whole)
            table.add_row(marked, *(cells[heading] for heading, _ in columns), style=style)
        if len(shown) < len(layers):
            table.add_row(f"  and {len(layers) - len(shown)} more", style="dim")
        return table

    def _layers(self) -> "list[tuple[KernelRow, bool]]":
        """A row for each layer, that of its fastest task with the trials of all, and whether any of them is active;
        those that take most of the network's time first.
        """
        groups: dict[str, list[int]] = {}
        for index, row in enumerate(self._rows):
            groups.setdefault(row.layer or f"task {index}", []).append(index)
        layers = []
        for group in groups.values():
            rows = [self._rows[index] for index in group]
            fastest = min(rows, key=lambda row: row.best_seconds)
            reason = fastest.stop_reason if all(row.stop_reason for row in rows) else ""
            row = replace(fastest, trials=sum(row.trials for row in rows), stop_reason=reason)
            layers.append((row, self._active in group))
        return sorted(layers, key=lambda layer: -layer[0].weighted_seconds)


def _first(layers: "list[tuple[KernelRow, bool]]", room: int) -> "list[tuple[KernelRow, bool]]":
    """The layers for which there is room; the active layer is among them."""
    if len(layers) <= room:
        return layers
    kept, later = layers[: room - 1], layers[room - 1 :]
    return [*kept[:-1], *([layer for layer in later if layer[1]] or kept[-1:])]


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
