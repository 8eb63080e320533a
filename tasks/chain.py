"""How tasks pass values, order and names to Prefect.

Prefect derives the order of the runs in a flow, which its UI draws as arrows, from the runs that a run waits for, not
from values: those pass from task to task as `opaque`. Prefect traverses the parameters of a task, down to the last
field of the last record, for results of other tasks to wait for. Ours hold none, and with a round of 64 programs the
traversal takes twenty times as long as the task itself.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast
from uuid import UUID

from prefect.client.schemas.objects import State, StateDetails
from prefect.context import FlowRunContext
from prefect.runtime import flow_run, task_run
from prefect.states import Completed
from prefect.utilities.annotations import quote

from retune.compiler.tune.operators import label_of

Value = TypeVar("Value")


def opaque(value: Value) -> Value:
    """Mark a parameter of a task, which Prefect then passes on as it is. Use it only in the call of a task or flow."""
    # Prefect unwraps `quote` before it calls the function, so the callee gets the value itself.
    return cast(Value, quote(value))


def task_name(verb: str, parameter: str) -> Callable[[], str]:
    """The name of a run of a task whose `parameter` is a network or an operator."""

    # A function and no template: Prefect's templates print a parameter as it is, a path of any length.
    def name() -> str:
        return f"{verb}-{label_of(str(task_run.parameters[parameter]))}"

    return name


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
