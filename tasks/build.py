"""In: candidate programs. Out: object code, or why there is none.

Always: one result per candidate, in order; a failure is a value.
"""

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from compiler.errors import MeasureError
from compiler.measure.builder import LocalBuilder
from compiler.measure.results import BuildResult
from compiler.schedule.task import SearchTask
from compiler.search.policy import Candidate
from tasks.retry import after


@task(
    name="build",
    task_run_name="build-{name}",
    retries=2,
    retry_delay_seconds=1,
    retry_condition_fn=after(MeasureError),
    cache_policy=NO_CACHE,
)
def build(
    name: str, builder: LocalBuilder, search_task: SearchTask, candidates: Sequence[Candidate]
) -> list[BuildResult]:
    """Compile a round's candidates on all build processes."""
    return builder.build(search_task, [candidate.steps for candidate in candidates])
