"""In: a verb. Out: what Prefect's UI calls a task run. Always: short, whatever folder a network is in."""

from collections.abc import Callable

from prefect.runtime import task_run

from retune.compiler.driver.operators import label_of


def named(verb: str, parameter: str) -> Callable[[], str]:
    """The name of a run of a task whose `parameter` is a network or an operator."""

    def name() -> str:
        return f"{verb}-{label_of(str(task_run.parameters[parameter]))}"

    return name
