"""In: a large parameter of a task. Out: the same, handed over without a look inside. Always: the task gets it as it is.

Prefect looks through the parameters of a task, down to the last field of the last record, for results of other tasks to
wait for. Ours hold none, and with a round of 64 programs the looking takes twenty times as long as the task itself.
"""

from typing import TypeVar, cast

from prefect.utilities.annotations import quote

Value = TypeVar("Value")


def whole(value: Value) -> Value:
    """A parameter that Prefect passes on unseen; only to be given to a task."""
    return cast(Value, quote(value))
