"""The order of the task runs of a flow, which Prefect's UI draws as arrows.

Prefect derives the order from the runs that a run waits for, not from values: those pass from task to task without
Prefect inspecting them (see `retune.tasks.opaque`).
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast
from uuid import UUID

from prefect.client.schemas.objects import State, StateDetails
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Completed

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Chain:
    """Runs the tasks and flows of a flow one after another. `last` are the runs that the next run follows."""

    def __init__(self) -> None:
        self.last: list[State[object]] = []

    def run(self, step: Callable[Given, Result], *args: Given.args, **named: Given.kwargs) -> Result:
        """Call a task or a flow. Raises: what it raises."""
        forget_results()
        call = cast(Callable[..., State[Result]], step)
        state = call(*args, **named, return_state=True, wait_for=self.last)
        result: Result = state.result()
        details = state.state_details
        # The page draws a flow within a flow under its own number, not that of the task run which stands for it.
        is_task = flow_run.id == str(details.flow_run_id)
        self.last = [finished_state(details.task_run_id if is_task else details.flow_run_id)]
        return result


def finished_state(run: UUID | None) -> State[object]:
    """The state of a run that has ended well, without its result, which Prefect would traverse."""
    return Completed(state_details=StateDetails(task_run_id=run), data=True)


def forget_results() -> None:
    """Have Prefect forget the results of this flow's tasks, by which it would know what the next task reads.

    It knows a list or a record with slots by its address alone, and takes a new object at the address of a freed
    result for that result (PrefectHQ/prefect#20558): a run would follow another that it reads nothing of.
    """
    context = FlowRunContext.get()
    if context is not None:
        context.run_results.clear()
