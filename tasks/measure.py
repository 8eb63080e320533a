"""In: built programs. Out: their times, or why there are none.

Always: one result per program, in order; a failed program is a value, a failed machine an error that is retried.
"""

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from compiler.errors import MeasureError
from compiler.measure.results import BuildResult, MeasureResult
from compiler.measure.runner import LocalRunner
from compiler.schedule.task import SearchTask
from tasks.retry import after


@task(
    name="measure",
    task_run_name="measure-{name}",
    retries=2,
    retry_delay_seconds=1,
    retry_condition_fn=after(MeasureError),
    cache_policy=NO_CACHE,
)
def measure(
    name: str, runner: LocalRunner, search_task: SearchTask, builds: Sequence[BuildResult], best_seconds: float
) -> list[MeasureResult]:
    """Time a round's programs one after the other; one that is clearly slower than `best_seconds` is not repeated."""
    return runner.run(search_task, builds, best_seconds=best_seconds)
