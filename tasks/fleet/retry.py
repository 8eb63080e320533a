"""Conditions under which Prefect retries a task.

Only failures of the machinery are retried, not those of a program or mistakes of a user.
"""

from collections.abc import Callable
from typing import Any

from prefect.client.schemas.objects import State, TaskRun


def after(*kinds: type[BaseException]) -> Callable[[Any, TaskRun, State[Any]], bool]:
    """A condition that holds when a task failed with one of `kinds`."""

    def condition(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
        # `state.data` is the exception itself as long as the state was made in this process.
        return isinstance(state.data, kinds)

    return condition
