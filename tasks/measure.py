"""In: candidate programs. Out: their times, or why there are none.

Always: one result per program, in order; a failed program is a value, a failed machine an error that is retried.
"""

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.errors import MeasureError
from retune.compiler.measure.results import Measurement
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import Candidate
from retune.tasks.retry import after
from retune.tasks.workers import Workers


@task(
    name="measure",
    task_run_name="measure-{name}",
    retries=2,
    retry_delay_seconds=1,
    retry_condition_fn=after(MeasureError),
    cache_policy=NO_CACHE,
)
def measure(
    name: str, workers: Workers, search_task: SearchTask, candidates: Sequence[Candidate], best_seconds: float
) -> list[Measurement]:
    """Build a round's programs and time each alone; builds go on beside the timing where processors are free. One that
    is clearly slower than `best_seconds` is not repeated.
    """
    return workers.measurer.measure(search_task, [candidate.steps for candidate in candidates], best_seconds)
