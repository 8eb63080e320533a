"""In: a run and what was stored. Out: the run, wiser. Always: only records that are durable are learned."""

from collections.abc import Mapping, Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from compiler.driver.extract import ExtractedNetwork
from compiler.driver.tuning import Origin, Tuning, begin
from compiler.measure.record import MeasureRecord


@task(name="begin-tuning", cache_policy=NO_CACHE)
def begin_tuning(extracted: ExtractedNetwork, origin: Origin) -> Tuning:
    """A run before its first round: one policy per tuning task, one cost model for all of them."""
    return begin(extracted.tasks, extracted.weights, origin)


@task(name="train", task_run_name="train-{name}", cache_policy=NO_CACHE)
def train(name: str, tuning: Tuning, index: int, records: Sequence[MeasureRecord]) -> None:
    """Tell one stored round to the policy, the cost model and the scheduler."""
    tuning.tell(index, records)


@task(name="replay", task_run_name="replay-{run_id}", cache_policy=NO_CACHE)
def replay(
    run_id: str, tuning: Tuning, history: Mapping[str, Sequence[MeasureRecord]], own: Sequence[MeasureRecord]
) -> None:
    """Bring a run to where its stored records end."""
    tuning.replay(history, own)
