"""In: a task's fastest records. Out: the program that serves it.

Always: it was built again, gave the right answer and was the fastest in a fresh process, next to the untuned program.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.measure.builder import LocalBuilder
from compiler.measure.record import MeasureRecord, MeasureStatus
from compiler.measure.results import MeasureResult
from compiler.measure.runner import LocalRunner
from compiler.schedule.default import default_steps
from compiler.schedule.steps import load_steps
from compiler.schedule.task import SearchTask


@dataclass(frozen=True, slots=True)
class Winner:
    """What serves a task: `record`, or the default schedule when that is None. Times are seconds per call, infinite
    where the program failed.

    `rejected` says of every better-looking record why it does not serve.
    """

    task_key: str
    name: str
    record: MeasureRecord | None
    default_seconds: float
    seconds: float
    rejected: tuple[str, ...]


def choose_winner(
    task: SearchTask, records: Sequence[MeasureRecord], builder: LocalBuilder, runner: LocalRunner
) -> Winner:
    """Build and time the untuned program and those of `records` once more, and take the fastest right one.

    Raises: MeasureError when the workers cannot work at all.
    """
    programs = [tuple(default_steps(task.dag)), *(load_steps(record.steps) for record in records)]
    results = runner.run(task, builder.build(task, programs))
    default, *others = (_seconds(result) for result in results)
    best = min(range(len(records)), key=lambda index: others[index], default=None)
    rejected = tuple(
        f"{record.record_id}: {result.status.name}: {result.error.strip().partition(chr(10))[0]}"
        for record, result in zip(records, results[1:], strict=True)
        if result.status is not MeasureStatus.OK
    )
    if best is None or not others[best] < default:
        return Winner(task.workload_key, task.name, None, default, default, rejected)
    return Winner(task.workload_key, task.name, records[best], default, others[best], rejected)


def _seconds(result: MeasureResult) -> float:
    """The median cost; infinite for a failure."""
    if result.status is not MeasureStatus.OK:
        return math.inf
    return sorted(result.costs)[len(result.costs) // 2]
