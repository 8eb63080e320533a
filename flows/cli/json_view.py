"""The events and the report of a run as JSON lines, for programs that start `retune tune --json`.

One object per line, its kind in `event`. Times are in seconds, null while unknown. Fields may be added; these stay.

### `run_opened`

- `run_id`, `network`, `folder` (of the state), `resumed`, `tasks` (every task as below)
- `trials`, `elapsed`: spent before; `trials_limit`, `seconds_limit`: the budget, or null
- `known`: programs measured by earlier runs, not measured again

### `task`

- `name`, `task_key` (as in the records), `weight` (uses), `flops` and `moved_bytes` of one use
- `rounds`, `trials`: spent in this run; `stop_reason`: why it gets no more, or empty
- `default_seconds`, `best_seconds`, `gflops`: the default schedule, the best program, its speed
- `failed_rules`: a sentence for each sketch rule that raised
- `layer`: tasks with the same text compute the same, such as Winograd; `behind`: whether another one was faster then
- `tunable`, `origin` (record, transfer, guess, context, default), `record_id`, `note`, `used`: its program,
  in a report

### `round_started`

- `round`: its number, from 0; `task`: the name of its task

### `round_done`

- `round`, `task` (as above), `failed`: failed programs of the round
- `trials`, `elapsed`: so far; `seconds_left`: estimate
- `latency`: estimate over the tasks that have a time; `latency_is_complete`: whether all have
- `contention`: share of the timings lost to other processes or a slow CPU

### `task_stopped`

- `task`, `reason`

### `phase_started`

- `text`: what the run does; the first events, such as reading the network, are of this kind

### `phase_advanced`

- `done`, `total`: steps

### `report`

The last line: the content of `report.json` in the run's folder.

- `run_id`, `request` (network and options), `trials`, `elapsed`
- `artifact`: the compiled network; `records`: their folder or URL; `folder`: of the run
- `comparison`: `comparison.contenders` with name, seconds and output error; `speedup`: untuned ÷ tuned; `is_right`:
  whether all outputs are within tolerance
- `coverage`: `coverage.shares` of the kernels by origin; `tasks`: every kernel, its times, trials, record and origin
- `precision`: what `--precision` chose: layers with precision, seconds and error; null in float32
- `limits`: measured `limits.peak_gflops`, `limits.memory_gbs`, `limits.cache_gbs`
- `contention`: the larger of a typical trial's and the comparison's; above 0.05 the machine was busy
"""

import json
import re
from dataclasses import asdict
from typing import Any

from retune.compiler.tune.report import Report
from retune.flows.cli.commands.output import json_line
from retune.flows.events import Event, RoundDone, RunOpened

# What is written once has to stay: fields that may change are left out.
_OF_TERMINALS = ("index", "untimed", "model")


def event_line(event: Event) -> str:
    """An event as one line, whatever its kind."""
    return json_line(event_fields(event))


def report_line(report: Report) -> str:
    """The last line of a run: everything that `report.json` holds."""
    return json_line({"event": "report", **json.loads(report.to_json())})


def event_fields(event: Event) -> dict[str, Any]:
    """An event as plain values: its kind, and its fields but for those that only a terminal shows."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    fields = {name: value for name, value in asdict(event).items() if name not in _OF_TERMINALS}
    match event:
        case RunOpened():
            fields["tasks"] = [task.to_json() for task in event.tasks]
        case RoundDone():
            del fields["trials_limit"]  # `run_opened` has it
            fields.update(round=event.round - 1, task=event.task.to_json(), latency_is_complete=not event.untimed)
    return {"event": kind, **fields}
