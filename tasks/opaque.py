"""Parameters of tasks that Prefect passes on without traversing them.

Prefect traverses the parameters of a task, down to the last field of the last record, for results of other tasks to
wait for. Ours hold none, and with a round of 64 programs the traversal takes twenty times as long as the task itself.
"""

from typing import TypeVar, cast

from prefect.utilities.annotations import quote

Value = TypeVar("Value")


def opaque(value: Value) -> Value:
    """Mark a parameter of a task, which Prefect then passes on as it is. Use it only in the call of a task or flow."""
    # Prefect unwraps `quote` before it calls the function, so the callee gets the value itself.
    return cast(Value, quote(value))
