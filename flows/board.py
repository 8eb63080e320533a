"""In: the events of a run. Out: what a terminal shows of it: a table of tasks, what goes on now, how far it is.

Always: what it draws comes from the events and a clock alone; it fits the terminal, whatever its size.
"""

import math
import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from compiler.driver.tuning import TaskRow
from flows.progress import (
    Event,
    PhaseAdvanced,
    PhaseStarted,
    RoundDone,
    RoundStarted,
    RunOpened,
    TaskStopped,
    duration,
)

SHARE_WIDTH = 12
"""Letters of the bars that show where the network's time goes."""

WIDE, MIDDLE = 110, 76
"""Letters from which on a terminal has room for all columns, for most columns."""

CHROME = 8
"""Lines of a screen that are not rows of the table."""


class Board:
    """The state of a run as a person wants to see it. Something that rich can print."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: list[TaskRow] = []
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
        """Take an event in."""
        match event:
            case RunOpened():
                self._rows = list(event.rows)
                self._limits = event.trials_limit, event.seconds_limit
                self._tuning = True
                self._pieces = None
                self._stand(event.trials, event.elapsed, None)
            case RoundStarted():
                self._active = event.index
                self._activity = f"round {event.round + 1}: {event.name}"
            case RoundDone():
                self._rows[event.index] = event.row
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
        yield Group(self._table(options.max_width, console.size.height), self._now(), self._progress())

    def _now(self) -> RenderableType:
        pieces = f" ({self._pieces[0]}/{self._pieces[1]})" if self._pieces else ""
        self._spinner.update(text=Text(f" {self._activity}{pieces}", no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def _progress(self) -> RenderableType:
        """The bar of the budget, or of the phase that goes on, with the words that belong to it."""
        if not self._tuning:
            done, total = self._pieces or (0, 0)
            return ProgressBar(total=float(total) if total else None, completed=float(done), pulse=not total, width=30)
        passed = self._clock() - self._since
        elapsed, left = self._elapsed + passed, max(0.0, self._left - passed)
        trials = f"{self._trials}" + (f"/{self._limits[0]}" if self._limits[0] else "")
        words = f"{self.share:4.0%}  left {duration(left)}  {trials} trials  elapsed {duration(elapsed)}"
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=1.0, completed=self.share, width=30),
            Text(f"{words}  network {self._estimate or '?'}", no_wrap=True, overflow="ellipsis"),
        )
        return line

    @property
    def share(self) -> float:
        """How much of the budget is spent, 0 to 1: of the limit that is nearer."""
        trials, seconds = self._limits
        elapsed = self._elapsed + self._clock() - self._since
        return min(1.0, max(self._trials / trials if trials else 0.0, elapsed / seconds if seconds else 0.0))

    def _table(self, width: int, height: int) -> Table:
        table = Table(box=None, padding=(0, 1), header_style="dim")
        table.add_column("task", no_wrap=True, overflow="ellipsis", max_width=32)
        headings = ["trials", "best ms", "GFLOP/s"]
        if width >= MIDDLE:
            table.add_column("share of time", no_wrap=True)
            headings = ["uses", "trials", "best ms", "speedup", "GFLOP/s"]
        if width >= WIDE:
            headings = ["uses", "rounds", "trials", "default ms", "best ms", "speedup", "GFLOP/s"]
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        shown = self._shown(max(3, height - CHROME))
        whole = sum(_weighted(row) for row in self._rows)
        for index in shown:
            row = self._rows[index]
            style = "bold" if index == self._active else "dim" if row.stop_reason else ""
            marked = f"{'▸' if index == self._active else ' '} {row.name}"
            cells = _cells(row)
            shares = [_share(row, whole)] if width >= MIDDLE else []
            table.add_row(marked, *shares, *(cells[heading] for heading in headings), style=style)
        if len(shown) < len(self._rows):
            table.add_row(f"  and {len(self._rows) - len(shown)} more tasks", style="dim")
        return table

    def _shown(self, room: int) -> list[int]:
        """The tasks for which there is room: the active one and those that take most of the network's time."""
        if len(self._rows) <= room:
            return list(range(len(self._rows)))
        heavy = sorted(range(len(self._rows)), key=lambda index: -_weighted(self._rows[index]))
        kept = heavy[: room - 1]
        if self._active is not None and self._active not in kept:
            kept[-1] = self._active
        return sorted(kept)


def _weighted(row: TaskRow) -> float:
    """Seconds of a network's run that all uses of a task take; 0 while that is unknown, or another task serves."""
    return row.weight * row.best_seconds if math.isfinite(row.best_seconds) and not row.behind else 0.0


def _share(row: TaskRow, whole: float) -> Text:
    """The task's share of the known time of the network as a bar of letters."""
    if not math.isfinite(row.best_seconds) or not whole:
        return Text("-")
    share = _weighted(row) / whole
    full = round(share * SHARE_WIDTH)
    return Text.assemble(("━" * full, "cyan"), ("─" * (SHARE_WIDTH - full), "dim"), f" {share:4.0%}")


def _cells(row: TaskRow) -> dict[str, str]:
    known = math.isfinite(row.best_seconds)
    faster = known and math.isfinite(row.default_seconds)
    return {
        "uses": f"{row.weight}",
        "rounds": f"{row.rounds}",
        "trials": f"{row.trials}",
        "default ms": _cell(row.default_seconds * 1e3, 3),
        "best ms": _cell(row.best_seconds * 1e3, 3),
        "speedup": f"{row.default_seconds / row.best_seconds:.1f}x" if faster else "-",
        "GFLOP/s": f"{row.gflops:.1f}" if known else "-",
    }


def _cell(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"
