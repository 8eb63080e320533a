"""The Prefect task that asks the search policy for programs to measure.

It is seeded: the same state gives the same programs.
"""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.measure.record import TaskProgram
from retune.compiler.tune.tuning import Tuning


@task(name="sample", task_run_name="sample-{name}", cache_policy=NO_CACHE)
def sample(name: str, tuning: Tuning, index: int, count: int, spent: float = 0.0) -> tuple[TaskProgram, ...]:
    """Ask the policy of task `index` for up to `count` programs; none when it has no more. `spent` is the
    share of the budget that is gone.
    """
    return tuning.ask(index, count, spent)
