"""Offline training: trains a cost model on stored records of tasks and reports its accuracy on unseen records.

Training is deterministic: the same records give the same model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import OptionError
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.model.base import ModelMetrics, TrainingBatch
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.tuning import RunHeader, Tuning, begin


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A cost model trained on records, and its accuracy.

    `tuning` is a run without rounds that holds the model. `programs` is how many programs it learned, and `judged` how
    many of them were predicted before they were learned. `pair_accuracy` and `top_recall` are those of `ModelMetrics`,
    averaged over the judged programs, None if there are too few.
    """

    tuning: Tuning
    programs: int
    judged: int
    pair_accuracy: float | None
    top_recall: float | None


def train_model(
    tasks: Sequence[SearchTask],
    records: Mapping[str, Sequence[MeasureRecord]],
    training_data: Sequence[TrainingBatch],
    run_info: RunHeader,
    holdout: float = 0.2,
) -> TrainedModel:
    """Train on the records of the tasks, by workload key, after `training_data` of other tasks.

    The latest share `holdout` of every task's records is predicted before it is learned. Raises: OptionError.
    """
    if not 0.0 <= holdout < 1.0:
        raise OptionError(f"the share held out must be at least 0 and less than 1, not {holdout}")
    tuning = begin(tasks, [1] * len(tasks), run_info)
    early: dict[str, Sequence[MeasureRecord]] = {}
    late: dict[str, Sequence[MeasureRecord]] = {}
    for task in tasks:
        # The latest are held out, not random records: a search predicts later programs from earlier programs, too.
        ordered = sorted(records.get(task.workload_key, ()), key=lambda record: (record.timestamp, record.record_id))
        cut = len(ordered) - round(len(ordered) * holdout)
        early[task.workload_key], late[task.workload_key] = ordered[:cut], ordered[cut:]
    tuning.replay(early, (), training_data)
    judged: list[ModelMetrics] = []
    for index, task in enumerate(tasks):
        if late[task.workload_key]:
            tuning.tell(index, late[task.workload_key])
            if tuning.metrics is not None:
                judged.append(tuning.metrics)
    seen = sum(metrics.programs for metrics in judged)
    return TrainedModel(
        tuning,
        sum(len(task_records) for task_records in records.values()),
        seen,
        sum(accuracy.pair_accuracy * accuracy.programs for accuracy in judged) / seen if seen else None,
        sum(accuracy.top_recall * accuracy.programs for accuracy in judged) / seen if seen else None,
    )
