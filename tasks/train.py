"""Prefect tasks that train the cost model of a run.

It learns only from records that are durable, so a run that is resumed learns the same.
"""

import time
from collections.abc import Mapping, Sequence

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from retune.compiler.core.errors import StoreError
from retune.compiler.core.options import SchedulerOptions
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.model import TrainingBatch
from retune.compiler.model.features import FEATURE_VERSION
from retune.compiler.model.training_data import batches_from_bytes, batches_to_bytes
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.extract import Extracted
from retune.compiler.tune.train import TrainedModel, train_model
from retune.compiler.tune.tuning import RunHeader, Tuning, begin
from retune.storage.checkpoints import CheckpointStore
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from retune.storage.store_url import Location


@task(name="begin-tuning", task_run_name="begin-tuning", cache_policy=NO_CACHE)
def begin_tuning(extracted: Extracted, run_info: RunHeader, scheduler: SchedulerOptions | None = None) -> Tuning:
    """A run before its first round: one policy per tuning task, one cost model for all of them."""
    return begin(extracted.tasks, extracted.weights, run_info, layers=extracted.layers, scheduler=scheduler)


@task(name="train", task_run_name="train-{name}", cache_policy=NO_CACHE)
def train(name: str, tuning: Tuning, index: int, records: Sequence[MeasureRecord]) -> None:
    """Tell one stored round to the policy, the cost model and the scheduler."""
    tuning.tell(index, records)


@task(name="replay", task_run_name="replay", cache_policy=NO_CACHE)
def replay(
    tuning: Tuning,
    history: Mapping[str, Sequence[MeasureRecord]],
    own: Sequence[MeasureRecord],
    training_data: Sequence[TrainingBatch],
    foreign: Sequence[MeasureRecord] = (),
) -> None:
    """Bring a run to where its stored records end, with what the models of earlier runs knew of other networks;
    `foreign` are the best programs of other tasks.
    """
    tuning.replay(history, own, training_data, foreign)


@task(name="recall-checkpoint", task_run_name="recall-checkpoint", cache_policy=NO_CACHE)
def recall_checkpoint(run_id: str, home: Location, run_info: RunHeader) -> list[TrainingBatch]:
    """What the latest run on this device had learned when this run began; nothing if that cannot be used."""
    run = RunLedger(home).get(run_id)
    return _checkpoint(home, run_info, run.horizon or run.started)


@task(name="learn-records", task_run_name="learn-records", cache_policy=NO_CACHE)
def learn_records(tasks: Sequence[SearchTask], home: Location, run_info: RunHeader, holdout: float) -> TrainedModel:
    """A cost model trained on all records of the tasks on the run's device, after the training
    data of earlier runs.
    """
    store = ParquetRecordStore(home)
    records = {
        task.workload_key: store.records(task.workload_key, run_info.target, run_info.device, threads=run_info.threads)
        for task in tasks
    }
    return train_model(tasks, records, _checkpoint(home, run_info, time.time()), run_info, holdout)


@task(name="save-checkpoint", task_run_name="save-checkpoint", cache_policy=NO_CACHE)
def save_checkpoint(home: Location, tuning: Tuning) -> None:
    """Keep what the model knows now for later runs on its device."""
    if tuning.model is not None:
        run_info = tuning.run_info
        data = batches_to_bytes(tuning.model.training_data())
        CheckpointStore(home, run_info.target, run_info.device, run_info.threads, FEATURE_VERSION).save(data)


def _checkpoint(home: Location, run_info: RunHeader, before: float) -> list[TrainingBatch]:
    try:
        checkpoints = CheckpointStore(home, run_info.target, run_info.device, run_info.threads, FEATURE_VERSION)
        data = checkpoints.newest(before=before)
        return [] if data is None else batches_from_bytes(data)
    except StoreError as error:
        # Training data only speeds a run up: damaged or newer data must not stop it.
        get_run_logger().info("a cost model without training data: %s", error)
        return []
