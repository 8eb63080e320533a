"""Trials for tuning logs."""

from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.schedule.primitives import split
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import steps_of
from retune.compiler.schedule.task import SearchTask


def split_by_one(task: SearchTask) -> LoggedTrial:
    """A program that no default schedule is: the first loop of the last stage is split by one."""
    state, _ = split(State.initial(task.dag), len(task.dag.ops) - 1, 0, [1])
    return LoggedTrial(LoggedTask.of(task), steps_of(state), (1e-6,), MeasureStatus.OK, 1.0, 1)
