"""The profile of a graph: the time of every node, as a table, a trace and JSON.

A report is frozen; after a round trip through JSON it prints the same table.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.archive import damage_text
from retune.compiler.runtime.timing import BenchmarkResult

# The headers of TVM's reports, by which scripts find columns.
_HEADER = ("Node Name", "Ops", "Time(us)", "Time(%)", "Shape", "Inputs", "Outputs", "Measurements(us)")
_COLUMNS = ("Name", "Duration (us)", "Percent", "Device", "Count", "Argument Shapes", "Hash")
_UNITS = {"Duration (us)": "microseconds", "Percent": "percent", "Count": "count"}


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node: `op` is its function, "param" for inputs; `shape` and the numbers of `inputs` and `outputs` describe
    its values; `result` holds seconds.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    inputs: int
    outputs: int
    result: BenchmarkResult

    @property
    def is_param(self) -> bool:
        """Whether the node computes nothing."""
        return self.op == "param"


def time_table(times: Sequence[NodeTime], sort_by_time: bool = True) -> str:
    """A table of all computing nodes, and their total."""
    rows = [time for time in times if not time.is_param]
    total = sum(time.result.mean for time in rows)
    if sort_by_time:
        rows.sort(key=lambda time: -time.result.mean)
    cells = [_row(time, total) for time in rows]
    cells.append(("Total_time", "-", f"{total * 1e6:.3f}", "-", "-", "-", "-", "-"))
    return _table([_HEADER, tuple("-" * len(name) for name in _HEADER), *cells])


def trace_json(times: Sequence[NodeTime]) -> str:
    """The nodes one after another, for trace viewers; times start at 0 and are in microseconds."""
    events: list[dict[str, object]] = []
    now = 0.0
    for time in times:
        # Chrome's trace event format: a pair of begin and end events.
        for phase in "BE":
            events.append({"name": time.name, "cat": time.op, "ph": phase, "ts": now, "pid": 1, "tid": 1})
            now += time.result.mean * 1e6 if phase == "B" else 0.0
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, indent=1)


def _row(time: NodeTime, total: float) -> tuple[str, ...]:
    seconds = time.result.mean
    share = 100 * seconds / total if total else 0.0
    measured = ", ".join(f"{result * 1e6:.3f}" for result in time.result.results)
    shape = f"({', '.join(map(str, time.shape))})"
    counts = str(time.inputs), str(time.outputs)
    return (time.name, time.op, f"{seconds * 1e6:.3f}", f"{share:.3f}", shape, *counts, f"[{measured}]")


Value = str | int | float


@dataclass(frozen=True, slots=True)
class Report:
    """One timed run: the calls in order, sums per device, and the configuration."""

    calls: tuple[Mapping[str, Value], ...]
    device_metrics: Mapping[str, Mapping[str, Value]]
    configuration: Mapping[str, Value]

    def __str__(self) -> str:
        return self.table()

    def table(self, sort: bool = True) -> str:
        """All calls, the slowest first unless `sort` is false, their total, and the configuration."""
        calls = sorted(self.calls, key=lambda call: -float(call["Duration (us)"])) if sort else list(self.calls)
        total = sum(float(call["Duration (us)"]) for call in calls)
        sums: dict[str, Value] = {"Name": "Total", "Duration (us)": total, "Count": sum(int(c["Count"]) for c in calls)}
        rows = [tuple(_cell(name, row.get(name, "")) for name in _COLUMNS) for row in (*calls, sums)]
        configuration = [("Configuration", *[""] * 6), ("-" * 13, *[""] * 6)]
        configuration += [(f"{name}: {value}", *[""] * 6) for name, value in self.configuration.items()]
        return _table([_COLUMNS, tuple("-" * len(name) for name in _COLUMNS), *rows]) + "\n" + _table(configuration)

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.calls)
        return text.getvalue()

    def json(self) -> str:
        """Everything, each value with its unit: string, count, microseconds or percent."""
        return json.dumps(
            {
                "calls": [_with_units(call) for call in self.calls],
                "device_metrics": {name: _with_units(metrics) for name, metrics in self.device_metrics.items()},
                "configuration": _with_units(self.configuration),
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The inverse of `json`. Raises: ArtifactError for anything else."""
        try:
            data = json.loads(text)
            calls = tuple(_without_units(call) for call in data["calls"])
            devices = {name: _without_units(metrics) for name, metrics in data["device_metrics"].items()}
            return cls(calls, devices, _without_units(data["configuration"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtifactError(f"this is no report: {damage_text(error)}") from error


def make_report(times: Sequence[NodeTime], hashes: Mapping[str, str], device: str, threads: int) -> Report:
    """The report of one run of a graph; `hashes` are the functions' hashes, by name."""
    rows = [
        (time.op, time.result.mean, 1, "x".join(map(str, time.shape)), hashes.get(time.op, ""))
        for time in times
        if not time.is_param
    ]
    return report_of(rows, "Graph", device, threads)


def report_of(rows: Sequence[tuple[str, float, int, str, str]], executor: str, device: str, threads: int) -> Report:
    """The report of `rows`: a name, the seconds of all its calls, how many these are, a shape and a hash."""
    total = sum(seconds for _, seconds, *_ in rows)
    calls: tuple[Mapping[str, Value], ...] = tuple(
        {
            "Name": name,
            "Duration (us)": seconds * 1e6,
            "Percent": 100 * seconds / total if total else 0.0,
            "Device": device,
            "Count": count,
            "Argument Shapes": shape,
            "Hash": digest,
        }
        for name, seconds, count, shape, digest in rows
    )
    calls_of_all = sum(count for _, _, count, *_ in rows)
    metrics: dict[str, Value] = {"Duration (us)": total * 1e6, "Count": calls_of_all, "Device": device}
    return Report(calls, {device: metrics}, {"Executor": executor, "Number of threads": threads})


def _with_units(row: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    return {name: {_unit(name, value): value} for name, value in row.items()}


def _unit(name: str, value: Value) -> str:
    return _UNITS.get(name, "string" if isinstance(value, str) else "count")


def _without_units(row: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    return {name: next(iter(value.values())) for name, value in row.items()}


def _cell(name: str, value: Value) -> str:
    return f"{value:.2f}" if isinstance(value, float) and name in _UNITS else str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
