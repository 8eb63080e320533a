"""Names of task runs in Prefect's UI, short even where a network is named by a long path."""

from collections.abc import Callable

from prefect.runtime import task_run

from retune.compiler.tune.operators import label_of


def task_name(verb: str, parameter: str) -> Callable[[], str]:
    """The name of a run of a task whose `parameter` is a network or an operator."""

    # A function and no template: Prefect's templates print a parameter as it is, a path of any length.
    def name() -> str:
        return f"{verb}-{label_of(str(task_run.parameters[parameter]))}"

    return name
