"""The events and the report of a run as JSON lines, for programs that start `retune tune --json`.

The fields are those that docs/cli.md lists; times are in seconds, and null where there is none.
"""

import json
from dataclasses import asdict
from typing import Any, TextIO

from retune.compiler.driver.report import Report
from retune.compiler.driver.tuning import TaskRow
from retune.flows.commands.output import json_line
from retune.flows.progress import Event, PhaseAdvanced, PhaseStarted, RoundDone, RoundStarted, RunOpened, TaskStopped


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
    """An event as plain values."""
    match event:
        case RunOpened():
            fields = {
                "run_id": event.run_id,
                "network": event.network,
                "folder": event.folder,
                "resumed": event.resumed,
                "trials": event.trials,
                "trials_limit": event.trials_limit,
                "seconds_limit": event.seconds_limit,
                "elapsed": event.elapsed,
                "known": event.known,
                "tasks": [_task(row) for row in event.rows],
            }
            return {"event": "run_opened", **fields}
        case RoundStarted():
            return {"event": "round_started", "round": event.round, "task": event.name}
        case RoundDone():
            fields = {
                "round": event.round - 1,
                "task": _task(event.row),
                "failed": event.failed,
                "trials": event.trials,
                "elapsed": event.elapsed,
                "seconds_left": event.seconds_left,
                "latency": event.latency,
                "latency_is_complete": not event.untimed,
                "contention": event.contention,
            }
            return {"event": "round_done", **fields}
        case TaskStopped():
            return {"event": "task_stopped", "task": event.name, "reason": event.reason}
        case PhaseStarted():
            return {"event": "phase_started", "text": event.text}
        case PhaseAdvanced():
            return {"event": "phase_advanced", "done": event.done, "total": event.total}


def _task(row: TaskRow) -> dict[str, Any]:
    return {**asdict(row), "gflops": row.gflops}
