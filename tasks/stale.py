"""The task that estimates from stored records what tuning a network again would bring."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.core import config
from retune.compiler.tune.operators import extract
from retune.compiler.tune.stale import TuningEstimate, estimate
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import Location
from retune.tasks.chain import task_name


@task(name="judge", task_run_name=task_name("judge", "network"), cache_policy=NO_CACHE)
def judge(network: str, home: Location, target: str, device: str, threads: int) -> TuningEstimate:
    """What the records of this machine promise of the network."""
    subject = extract(network, target, threads)
    store = ParquetRecordStore(home)
    records = {key: store.records(key, target, device, threads=threads) for key in set(subject.task_keys)}
    return estimate(network, subject.tasks, subject.weights, records, config.engine_version(), subject.layers)
