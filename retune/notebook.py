"""What a notebook shows: a live table of a tuning run, and runs of the ledger as tables.

IPython is used where a kernel of it runs; it is never imported by this package.
"""

import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from importlib import import_module
from typing import Any

from retune.compiler.runtime.readable import count, html_table, milliseconds


def kernel_shell() -> Any:
    """The IPython shell of this process when a notebook's kernel runs it, else None."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # The IPython of a terminal has a shell too, but no kernel, and shows no HTML.
    return shell if getattr(shell, "kernel", None) is not None else None


def register_tables() -> None:
    """Let notebooks show a run of the ledger as a table. The storage knows nothing of HTML, so its class has no method
    for that.
    """
    shell = kernel_shell()
    if shell is not None:
        # By name: the storage is not imported until something else does.
        shell.display_formatter.formatters["text/html"].for_type_by_name("retune.storage.runs", "RunInfo", run_table)


def run_table(run: Any) -> str:
    """A `RunInfo` as HTML."""
    known = run.summary or {}
    started = datetime.fromtimestamp(run.started, UTC).isoformat(sep=" ", timespec="seconds")
    rows = [("started", started), ("state", "complete" if run.is_complete else "unfinished")]
    rows += [("trials", str(known["trials"]))] if known.get("trials") is not None else []
    for field, label in (("untuned_seconds", "untuned, ms"), ("tuned_seconds", "tuned, ms")):
        rows += [(label, milliseconds(float(known[field])))] if known.get(field) is not None else []
    return html_table(run.run_id, rows)


class LiveTable:
    """The state of a run by its events, as `retune tune --json` writes them: a table of tasks under a line of text.

    It is displayed at the first event and updated in its place at every further one.
    """

    _HEADER = ("task", "uses", "trials", "default ms", "best ms", "speedup", "GFLOP/s")

    def __init__(self) -> None:
        self._tasks: dict[str, Mapping[str, Any]] = {}
        self._activity = "starting"
        self._latency = ""
        self._trials: object = 0
        self._active = ""
        self._handle: Any = None

    def show(self, event: Mapping[str, Any]) -> None:
        """Take an event in and bring the table up to date."""
        match event.get("event"):
            case "run_opened":
                self._tasks = {str(task["task_key"]): task for task in event["tasks"]}
                self._trials = event.get("trials", 0)
            case "round_started":
                self._active = str(event.get("task"))
                self._activity = f"round {event.get('round')}"
            case "round_done":
                task, self._active = event["task"], ""
                self._tasks[str(task["task_key"])] = task
                self._trials = event.get("trials", 0)
                bound = "" if event.get("latency_is_complete") else "> "
                self._latency = f"network {bound}{milliseconds(event.get('latency'))} ms"
            case "phase_started":
                self._activity, self._active = str(event.get("text", "")), ""
            case "report":
                self._activity, self._active = "tuned", ""
                speedup = event.get("speedup")
                self._latency = f"{speedup:.2f} times as fast as untuned" if isinstance(speedup, float) else ""
            case _:
                return
        self._display()

    def _display(self) -> None:
        if self._handle is None:
            self._handle = import_module("IPython.display").display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        texts = (self._activity, f"{self._trials} trials", count(len(self._tasks), "task"), self._latency)
        return ", ".join(text for text in texts if text)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in self._HEADER)
        body = ""
        for task in self._tasks.values():
            kind = "th" if task["name"] == self._active else "td"
            body += f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in _cells(task))}</tr>"
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
        return f"<p>{escape(repr(self))}</p>{table}"


def _cells(task: Mapping[str, Any]) -> tuple[str, ...]:
    default, best = (_seconds(task.get(name)) for name in ("default_seconds", "best_seconds"))
    gflops = _seconds(task.get("gflops"))
    return (
        str(task["name"]),
        str(task.get("weight", "")),
        str(task.get("trials", 0)),
        milliseconds(default),
        milliseconds(best),
        f"{default / best:.2f}" if math.isfinite(default) and 0 < best < math.inf else "-",
        f"{gflops:.1f}" if 0 < gflops < math.inf else "-",
    )


def _seconds(value: Any) -> float:
    """A number of an event, which is null while it is unknown."""
    return float(value) if isinstance(value, int | float) else math.inf
