"""In: a network's name or file. Out: its graph, kernels and tuning tasks.

Always: asked again in the same process, the same answer at no cost.
"""

from prefect import task
from prefect.cache_policies import NO_CACHE

from compiler.driver.extract import ExtractedNetwork, extract_network


@task(name="extract-tasks", task_run_name="extract-{network}", cache_policy=NO_CACHE)
def extract_tasks(
    network: str, target: str, threads: int, shapes: tuple[str, ...] = (), winograd: bool = True
) -> ExtractedNetwork:
    """Read, optimise and cut a network into weighted tuning tasks."""
    return extract_network(network, target, threads, shapes, winograd)
