"""Tasks that extract the tuning tasks of a network or an operator; of a network also its graph and kernels."""

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.driver.extract import Extracted, ExtractedNetwork, extract_network
from retune.compiler.driver.operators import extract
from retune.tasks.names import named


@task(name="extract-tasks", task_run_name=named("extract", "network"), cache_policy=NO_CACHE)
def extract_tasks(
    network: str, target: str, threads: int, shapes: Sequence[str] = (), winograd: bool = True
) -> ExtractedNetwork:
    """Read, optimize and cut a network into weighted tuning tasks."""
    return extract_network(network, target, threads, shapes, winograd)


@task(name="extract-tasks", task_run_name=named("extract", "subject"), cache_policy=NO_CACHE)
def extract_any(subject: str, target: str, threads: int) -> Extracted:
    """The tuning tasks of a network or an operator."""
    return extract(subject, target, threads)
