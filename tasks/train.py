"""In: a run and what was stored. Out: the run, wiser. Always: only records that are durable are learned."""

import time
from collections.abc import Mapping, Sequence

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from retune.compiler.cost_model import TrainingBatch
from retune.compiler.cost_model.lessons import lessons_from_bytes, lessons_to_bytes
from retune.compiler.driver.extract import Extracted
from retune.compiler.driver.train import TrainedModel, train_model
from retune.compiler.driver.tuning import Origin, Tuning, begin
from retune.compiler.errors import StoreError
from retune.compiler.features import FEATURE_VERSION
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.options import SchedulerOptions
from retune.compiler.schedule.task import SearchTask
from retune.storage.lessons import LessonStore
from retune.storage.parquet import ParquetRecordStore
from retune.storage.place import Place
from retune.storage.runs import RunLedger


@task(name="begin-tuning", task_run_name="begin-tuning", cache_policy=NO_CACHE)
def begin_tuning(
    extracted: Extracted, origin: Origin, scheduler: SchedulerOptions | None = None
) -> Tuning:
    """A run before its first round: one policy per tuning task, one cost model for all of them."""
    return begin(extracted.tasks, extracted.weights, origin, layers=extracted.layers, scheduler=scheduler)


@task(name="train", task_run_name="train-{name}", cache_policy=NO_CACHE)
def train(name: str, tuning: Tuning, index: int, records: Sequence[MeasureRecord]) -> None:
    """Tell one stored round to the policy, the cost model and the scheduler."""
    tuning.tell(index, records)


@task(name="replay", task_run_name="replay", cache_policy=NO_CACHE)
def replay(
    run_id: str,
    tuning: Tuning,
    history: Mapping[str, Sequence[MeasureRecord]],
    own: Sequence[MeasureRecord],
    lessons: Sequence[TrainingBatch],
    foreign: Sequence[MeasureRecord] = (),
) -> None:
    """Bring a run to where its stored records end, with what the models of earlier runs knew of other networks;
    `foreign` are the best programs of other tasks.
    """
    tuning.replay(history, own, lessons, foreign)


@task(name="keep-lessons", task_run_name="keep-lessons", cache_policy=NO_CACHE)
def keep_lessons(run_id: str, home: Place, tuning: Tuning) -> None:
    """Keep what the model knows now for later runs on this device."""
    if tuning.trials:
        _save(home, tuning)


@task(name="recall-lessons", task_run_name="recall-lessons", cache_policy=NO_CACHE)
def recall_lessons(run_id: str, home: Place, origin: Origin) -> list[TrainingBatch]:
    """What the latest run on this device had learned when this run began; nothing if that cannot be used."""
    run = RunLedger(home).get(run_id)
    return _lessons(home, origin, run.horizon or run.started)


@task(name="learn-records", task_run_name="learn-records", cache_policy=NO_CACHE)
def learn_records(tasks: Sequence[SearchTask], home: Place, origin: Origin, holdout: float) -> TrainedModel:
    """A cost model trained on all records of the tasks on the origin's device, after the lessons of earlier runs."""
    store = ParquetRecordStore(home)
    records = {
        task.workload_key: store.records(task.workload_key, origin.target, origin.device, threads=origin.threads)
        for task in tasks
    }
    return train_model(tasks, records, _lessons(home, origin, time.time()), origin, holdout)


@task(name="save-lessons", task_run_name="save-lessons", cache_policy=NO_CACHE)
def save_lessons(home: Place, tuning: Tuning) -> None:
    """Keep what a trained model knows for later runs on its device."""
    _save(home, tuning)


def _save(home: Place, tuning: Tuning) -> None:
    if tuning.model is not None:
        origin = tuning.origin
        data = lessons_to_bytes(tuning.model.lessons())
        LessonStore(home, origin.target, origin.device, origin.threads, FEATURE_VERSION).save(data)


def _lessons(home: Place, origin: Origin, before: float) -> list[TrainingBatch]:
    try:
        lessons = LessonStore(home, origin.target, origin.device, origin.threads, FEATURE_VERSION)
        data = lessons.newest(before=before)
        return [] if data is None else lessons_from_bytes(data)
    except StoreError as error:
        get_run_logger().info("a cost model without lessons: %s", error)
        return []
