"""In: a network's name or file, or an operator. Out: its tuning tasks; of a network also its graph and kernels.

Always: asked again in the same process, the same answer at no cost.
"""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.driver.extract import ExtractedNetwork, extract_network
from retune.compiler.driver.operators import ExtractedOperator, extract_operator, is_operator
from retune.tasks.names import named


@task(name="extract-tasks", task_run_name=named("extract", "network"), cache_policy=NO_CACHE)
def extract_tasks(
    network: str, target: str, threads: int, shapes: tuple[str, ...] = (), winograd: bool = True
) -> ExtractedNetwork:
    """Read, optimise and cut a network into weighted tuning tasks."""
    return extract_network(network, target, threads, shapes, winograd)


def extracted(
    subject: str, target: str, threads: int, shapes: tuple[str, ...] = (), winograd: bool = True
) -> ExtractedNetwork | ExtractedOperator:
    """What is to be tuned: a network, or an operator as `retune.compiler.driver.operators` writes one."""
    if is_operator(subject):
        return extract_operator(subject, target, threads)
    return extract_network(subject, target, threads, shapes, winograd)


@task(name="extract-tasks", task_run_name=named("extract", "subject"), cache_policy=NO_CACHE)
def extract_any(
    subject: str, target: str, threads: int, shapes: tuple[str, ...] = (), winograd: bool = True
) -> ExtractedNetwork | ExtractedOperator:
    """The tuning tasks of a network or an operator."""
    return extracted(subject, target, threads, shapes, winograd)
