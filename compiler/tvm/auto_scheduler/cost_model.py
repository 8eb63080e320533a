"""TVM-compatible cost models: score programs, higher is better.

A score depends on the program, the seed and the training data, never on a global random state.

A custom model derives from `PythonBasedModel` or is any object with its methods. The models here wrap those in
`retune.compiler.model`, which the search calls directly: they score arrays of features, not programs.
"""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from retune.compiler import model as cost_model
from retune.compiler.core.errors import DefinitionError, OptionError, ScheduleError, TargetError
from retune.compiler.core.target import HardwareParams
from retune.compiler.driver.hardware import complete
from retune.compiler.measure.logs.log import LoggedTask, read_log
from retune.compiler.model import ModelMetrics, TrainingBatch, XGBOptions
from retune.compiler.model.features import FEATURE_NAMES
from retune.compiler.schedule import state as immutable
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.schedule.workload_registry import is_registered, workload_key_to_tensors
from retune.compiler.search.program_features import features_of_steps
from retune.compiler.tvm.auto_scheduler.loop_state import State
from retune.compiler.tvm.auto_scheduler.measure import MeasureInput, MeasureResult, measurement_of

Scores = NDArray[np.float64]
Features = NDArray[np.float32]

# Old logs name no hardware: `completed` derives it from the target.
_UNKNOWN_HARDWARE = HardwareParams(num_cores=1)


@runtime_checkable
class CostModel(Protocol):
    """The interface of models for a search."""

    def update(self, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Learn from measurements."""

    def predict(self, search_task: Any, states: Sequence[State]) -> Scores:
        """Score programs of a task, -inf for invalid ones."""


class PythonBasedModel:
    """A base class for custom models. They receive whole programs, which is slow."""

    def update(self, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Learn from measurements; override this."""
        raise NotImplementedError

    def predict(self, search_task: Any, states: Sequence[State]) -> Scores:
        """Score programs of a task; override this."""
        raise NotImplementedError


class RandomModel:
    """A model without knowledge: scores in [0, 1) are a hash of the program and `seed`; nothing is learned."""

    def __init__(self, *, seed: int = 0) -> None:
        """Raises: OptionError for a seed that is not an integer of at least 0."""
        self.model = cost_model.RandomModel(seed_of(seed))

    def update(self, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Nothing is learned."""

    def predict(self, search_task: SearchTask, states: Sequence[State]) -> Scores:
        return self.model.predict(stack_features(search_task, states))


class XGBModel:
    """Boosted trees that predict the throughput of a program, as the sum over its statements.

    Until `num_warmup_sample` programs were measured, scores are random (-1: never). `model_file` is written after every
    update. `seed` None means 0. The trees learn from new data and a bounded sample of old data, so the work per update
    does not grow. The error is logged every `verbose_eval` trees, at level DEBUG as in TVM; 0 is never. With
    `adapative_training` (also in the correct spelling) they wait until the new data is a fifth of the previous training
    set.
    """

    def __init__(
        self,
        verbose_eval: int = 25,
        num_warmup_sample: int = 100,
        seed: int | None = None,
        model_file: str | Path | None = None,
        # TVM's spelling, which scripts pass by name.
        adapative_training: bool = False,
        *,
        adaptive_training: bool = False,
    ) -> None:
        """Raises: OptionError for a number of samples below -1 or a seed below 0."""
        if num_warmup_sample < -1:
            raise OptionError(f"num_warmup_sample must be at least 0, or -1 for none, not {num_warmup_sample}")
        self.adaptive_training = adapative_training or adaptive_training
        self.model_file = model_file
        options = XGBOptions(warmup=max(0, num_warmup_sample), adaptive=self.adaptive_training)
        self.model = cost_model.XGBModel(seed_of(seed), options=options)
        self.verbose_eval = verbose_eval
        self.model.log_period = int(verbose_eval)

    def update(self, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Learn from measurements of one or several tasks. Programs that do not fit their task teach nothing."""
        by_task: dict[str, tuple[SearchTask, list[tuple[Features, float]]]] = {}
        for inp, result in zip(inputs, results, strict=True):
            task = inp.task if isinstance(inp.task, SearchTask) else _known_task(inp.task)
            features = None if task is None else _features(task, inp)
            if task is not None and features is not None:
                by_task.setdefault(task.identity, (task, []))[1].append((features, result.seconds))
        for task, measured in by_task.values():
            block = _pad([features for features, _ in measured])
            seconds = np.array([seconds for _, seconds in measured], dtype=np.float64)
            # A batch per task: speeds are relative to the fastest program of a task, so mixed batches would mix scales.
            self.learn(TrainingBatch(task.workload_key, block, seconds))

    def learn(self, batch: TrainingBatch) -> None:
        self.model.update(batch)
        if self.model_file is not None:
            self.save(self.model_file)

    def predict(self, task: SearchTask, states: Sequence[State]) -> Scores:
        return self.model.predict(stack_features(task, states))

    def predict_stages(self, task: SearchTask, states: Sequence[State]) -> Scores:
        """Scores of programs and of their statements in one flat array: of all programs, then for every program its
        number of statements and their scores. Before any training programs have no statements.
        """
        features = stack_features(task, states)
        parts = self.model.predict_statements(features)
        flat = [*self.model.predict(features)]
        for index in range(len(features)):
            # Rows of zeros are padding: a statement has at least one store, which counts in its features.
            used = features[index].any(axis=1)
            scores = [] if parts is None else [*parts[index][used]]
            flat += [float(len(scores)), *scores]
        return np.array(flat, dtype=np.float64)

    def update_from_file(self, file_name: str | Path, n_lines: int | None = None) -> None:
        """Learn from the first `n_lines` of a log (None: all of it). Records of unknown workloads teach nothing.

        Raises: LogFormatError when it cannot be read.
        """
        measured = [measurement_of(trial) for trial in read_log(Path(file_name), lines=n_lines)]
        self.update([inp for inp, _ in measured], [result for _, result in measured])

    def save(self, file_name: str | Path) -> None:
        """Write the whole model, with its training data, to a file."""
        self.model.save(Path(file_name))

    def load(self, file_name: str | Path) -> None:
        """Load the model that `save` wrote.

        Raises: StoreError when the file cannot be read or does not fit.
        """
        self.model = cost_model.XGBModel.load(Path(file_name))
        self.model.log_period = int(self.verbose_eval)


def seed_of(seed: int | None) -> int:
    """`seed`, or 0 for None. Raises: OptionError for anything but an integer of at least 0."""
    if seed is None:
        return 0
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise OptionError(f"a seed must be an integer of at least 0, not {seed!r}")
    return int(seed)


class _BuiltIn:
    """Adapter of a built-in model to the search, which passes it features."""

    def __init__(self, model: RandomModel | XGBModel) -> None:
        self._model = model

    @property
    def last_metrics(self) -> ModelMetrics | None:
        return self._model.model.last_metrics

    def update(self, batch: TrainingBatch) -> None:
        if isinstance(self._model, XGBModel):
            self._model.learn(batch)

    def predict(self, features: Features) -> Scores:
        return self._model.model.predict(features)


class _Custom:
    """Adapter of a custom model to the search, which passes it programs. The measurer trains it."""

    last_metrics = None

    def __init__(self, model: CostModel) -> None:
        self._model = model

    def update(self, batch: TrainingBatch) -> None:
        """It learns from programs, not from features."""

    def predict(self, features: Features) -> Scores:  # noqa: ARG002
        raise OptionError("this model scores programs, not features")

    def predict_states(self, task: SearchTask, states: Sequence[immutable.State]) -> Scores:
        scores = np.asarray(self._model.predict(task, [State(state) for state in states]), dtype=np.float64)
        if scores.shape != (len(states),):
            raise OptionError(f"the cost model gave scores of shape {scores.shape} for {len(states)} programs")
        return scores


def searchable(model: CostModel) -> cost_model.CostModel:
    """The model with the interface of `retune.compiler.search.policy`."""
    return _BuiltIn(model) if learns_by_itself(model) else _Custom(model)  # type: ignore[arg-type]


def learns_by_itself(model: CostModel) -> bool:
    """Whether the search itself trains the model."""
    # The exact types: a subclass may override `update`, which takes programs.
    return type(model) in (RandomModel, XGBModel)


def stack_features(task: SearchTask, states: Sequence[State]) -> Features:
    """Features (N, S, F) of programs; all 0 for a program without features, such as one with an unknown tile size."""
    blocks = [_features(task, MeasureInput(task, state)) for state in states]
    empty = np.zeros((1, len(FEATURE_NAMES)), dtype=np.float32)
    return _pad([empty if features is None else features for features in blocks])


def _features(task: SearchTask, inp: MeasureInput) -> Features | None:
    try:
        return features_of_steps(task, inp.state.steps)
    except ScheduleError:
        return None


def _pad(blocks: Sequence[Features]) -> Features:
    """Pad programs to as many rows as the longest has statements."""
    most = max((len(block) for block in blocks), default=1)
    padded = [np.pad(block, ((0, most - len(block)), (0, 0))) for block in blocks]
    return np.stack(padded) if padded else np.zeros((0, most, len(FEATURE_NAMES)), dtype=np.float32)


def _known_task(recorded: LoggedTask) -> SearchTask | None:
    """The task of a record, if its workload is registered in this process."""
    key = recorded.workload_key
    if not is_registered(key):
        return None
    try:
        graph, target = ComputeDAG(workload_key_to_tensors(key)), recorded.target
        hardware = complete(recorded.hardware_params or _UNKNOWN_HARDWARE, target)
    except (DefinitionError, TargetError, TypeError):
        return None
    return SearchTask(key, graph, target, hardware, key, recorded.layout_rewrite_option)
