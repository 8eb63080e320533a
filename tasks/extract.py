"""Tasks that extract the tuning tasks of a network or an operator; of a network also its graph and kernels."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.tune.extract import Extracted
from retune.compiler.tune.extract_dynamic import AnyImport, AnyNetwork
from retune.compiler.tune.operators import extract
from retune.tasks.chain import task_name


@task(name="extract-tasks", task_run_name=task_name("extract", "network"), cache_policy=NO_CACHE)
def extract_tasks(network: AnyImport, target: str, threads: int, winograd: bool = True) -> AnyNetwork:
    """Optimize and cut a network into weighted tuning tasks."""
    return network.extract(target, threads, winograd)


@task(name="extract-tasks", task_run_name=task_name("extract", "subject"), cache_policy=NO_CACHE)
def extract_any(subject: str, target: str, threads: int) -> Extracted:
    """The tuning tasks of a network or an operator."""
    return extract(subject, target, threads)
