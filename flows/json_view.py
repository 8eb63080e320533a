"""The events and the report of a run as JSON lines, for programs that start `retune tune --json`.

The fields are those that docs/reference/cli.md lists; times are in seconds, and null where there is none.
"""

import json
import re
from dataclasses import asdict
from typing import Any, TextIO

from retune.compiler.driver.report import Report
from retune.compiler.driver.tuning import TaskRow
from retune.flows.commands.output import json_line
from retune.flows.progress import Event, RoundDone, RunOpened

_OF_TERMINALS = ("index", "untimed", "model")


class JsonView:
    """One line per event, all of them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        """Write the event's line."""
        self._stream.write(json_line(event_fields(event)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing is left open."""


def report_line(report: Report) -> str:
    """The last line of a run: everything that `report.json` holds."""
    return json_line({"event": "report", **json.loads(report.to_json())})


def event_fields(event: Event) -> dict[str, Any]:
    """An event as plain values: its kind, and its fields but for those that only a terminal shows."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    fields = {name: value for name, value in asdict(event).items() if name not in _OF_TERMINALS}
    match event:
        case RunOpened():
            fields["tasks"] = [_task(task) for task in event.tasks]
        case RoundDone():
            del fields["trials_limit"]  # `run_opened` has it
            fields.update(round=event.round - 1, task=_task(event.task), latency_is_complete=not event.untimed)
    return {"event": kind, **fields}


def _task(row: TaskRow) -> dict[str, Any]:
    return {**asdict(row), "gflops": row.gflops}
