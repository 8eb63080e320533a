"""Boosted trees, summed over a program's statements. Equal updates give equal trees.

Work stays proportional to the number of programs measured. An update adds a few trees, trained on the new batch and a
bounded sample of older programs (all while they are few). The trees are trained again, on a larger but still bounded
sample, when the data have doubled or the trees have become many.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.errors import ArtifactError, OptionError, StoreError
from retune.compiler.core.json_reader import integer
from retune.compiler.core.options import check_options, option
from retune.compiler.model.base import ModelMetrics, TrainingBatch, judge, random_scores
from retune.compiler.model.features import FEATURE_NAMES
from retune.compiler.model.training_data import archive_of, batches_in, header_of, open_archive, refuse_wrong_data
from retune.compiler.model.training_set import History, TrainingRows, is_statement, throughputs
from retune.compiler.runtime.atomic_write import atomic_write

if TYPE_CHECKING:  # it loads scipy too, half a second before the first output of a command
    import xgboost

_log = logging.getLogger(__name__)

_Gradients = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class XGBOptions:
    """How the trees are grown."""

    warmup: int = option(32, least=0)
    """Programs before the first trees are grown."""
    scratch_rounds: int = option(100, least=0, most=1000)
    """Trees of a training from scratch."""
    update_rounds: int = option(10, least=0, most=1000)
    """Trees that an update adds."""
    most_trees: int = option(300, least=0, most=10_000)
    """More trees cause a training from scratch."""
    # Both bounds keep the cost of a training independent of the length of a run.
    scratch_programs: int = option(16384, least=0)
    """Most older programs of a training from scratch, in addition to the batch."""
    replay_programs: int = option(2048, least=0)
    """Most older programs of an update, in addition to the batch."""
    worst_weight: float = option(0.5, least=0, most=1)
    """Weight of a failed program; the best program has 1."""
    max_depth: int = option(4, least=0, most=16)
    # As in Ansor.
    eta: float = option(0.2, least=0, most=1)
    """Learning rate: the share of a tree's correction that is applied."""
    max_bin: int = option(128, least=2, most=65_536)
    """Bins of a feature's histogram."""
    column_share: float = option(0.4, least=0, most=1)
    """Share of the features that a tree may use."""
    adaptive: bool = option(False)
    """Whether the model trains only when new programs reach a fifth of those it was trained on, as TVM's does."""

    def __post_init__(self) -> None:
        """Raises: OptionError."""
        check_options(self)


@dataclass(frozen=True, slots=True)
class _Training:
    batches: int
    """Batches after which it is due."""
    fresh: int
    """Programs that are new to the trees."""
    scratch: bool
    """Whether the training starts from scratch."""


class XGBModel:
    """Boosted trees on all tasks together.

    `threads` train and predict. One thread is enough for the data of a tuning run, and safe: OpenMP threads wait for
    each other by spinning, so on a machine that builds and measures meanwhile, two take ten times as long.
    """

    def __init__(self, seed: int = 0, threads: int = 1, options: XGBOptions | None = None) -> None:
        if sys.flags.optimize > 1:
            raise OptionError("XGBoost needs docstrings, which python -OO (PYTHONOPTIMIZE=2) drops: use -O")
        self._seed = seed
        self._threads = threads
        self._options = options or XGBOptions()
        self._history = History()
        self._booster: xgboost.Booster | None = None
        self._plans: list[int] = []
        """How many batches there were each time a training was considered."""
        self._scratch_size = 0
        self._trees = 0
        self._trained_on = 0
        self._waiting: list[_Training] | None = None
        self._last_metrics: ModelMetrics | None = None
        self.log_period = 0
        """A training logs its error every `log_period` trees, at the level DEBUG; 0: never."""

    @property
    def last_metrics(self) -> ModelMetrics | None:
        """Quality of the trees on the latest batch before they learned from it; None while there were no trees."""
        return self._last_metrics

    @property
    def programs(self) -> int:
        return self._history.programs

    def update(self, batch: TrainingBatch) -> None:
        """Judge the trees on the batch, then learn from it. Raises: OptionError for a batch with other features."""
        self._check(batch)
        if not len(batch.seconds):
            return
        if self._waiting is None:
            self._last_metrics = self._judge(batch)
        self._take(batch)
        self._plan()

    def learn(self, batches: Sequence[TrainingBatch]) -> None:
        """Learn from earlier batches in a single training, without judging. Raises: OptionError as `update`."""
        for batch in batches:
            self._check(batch)
        for batch in batches:
            self._take(batch)
        self._plan()

    @contextmanager
    def retracing(self) -> Iterator[None]:
        """Replay updates at low cost: trees that a later update would drop are never grown, and no batch is judged. On
        leaving, the model equals that of ordinary updates.
        """
        if self._waiting is not None:
            yield
            return
        self._waiting = []
        try:
            yield
        finally:
            waiting, self._waiting = self._waiting, None
            for training in waiting:
                self._train(training)

    def training_data(self, most: int = 8192) -> list[TrainingBatch]:
        """A sample of the history for another model: at most `most` programs, a batch a task."""
        return self._history.condense(most, np.random.default_rng([self._seed, len(self._history.batches)]))

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores (B,) of programs (B, S, F), about throughput over the task's best; hashes before any training."""
        scores = self.predict_statements(features)
        if scores is None:
            return random_scores(features, self._seed)
        return np.where(is_statement(features).any(axis=1), scores.sum(axis=1), -np.inf)

    def predict_statements(self, features: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """The contribution of each statement to the score of its program, (B, S); None before any training."""
        if self._booster is None:
            return None
        count, statements, width = features.shape
        if not count:
            return np.zeros((0, statements))
        rows = np.ascontiguousarray(features, dtype=np.float32).reshape(count * statements, width)
        margins = self._booster.inplace_predict(rows, predict_type="margin")
        scores = np.asarray(margins, dtype=np.float64).reshape(count, statements)
        return scores * is_statement(features)

    def _judge(self, batch: TrainingBatch) -> ModelMetrics | None:
        if self._booster is None:
            return None
        best = float(np.min(batch.seconds))
        # Judged before learning, so the metrics are those of unseen programs.
        truth = throughputs(batch.seconds, best)
        return judge(self.predict(batch.features), truth, trained_on=self._history.programs)

    @staticmethod
    def _check(batch: TrainingBatch) -> None:
        if batch.features.shape[2] != len(FEATURE_NAMES):
            raise OptionError(f"the batch has {batch.features.shape[2]} features, the model needs {len(FEATURE_NAMES)}")

    def _take(self, batch: TrainingBatch) -> None:
        self._history.append(batch)

    def _plan(self) -> None:
        """If a training is due, choose one from scratch or a few more trees; run it unless updates are replayed."""
        options, programs, batches = self._options, self._history.programs, len(self._history.batches)
        self._plans.append(batches)
        fresh = programs - self._trained_on
        # Growing by a constant factor between trainings makes their number logarithmic in the number of programs.
        enough = self._trained_on / 5 if options.adaptive else 1
        if programs < options.warmup or fresh < enough:
            return
        self._trained_on = programs
        # Training from scratch each time the data double keeps the total cost linear in the number of programs
        # (amortized doubling). Trees added in between fit the residuals of the earlier trees.
        scratch = programs >= 2 * self._scratch_size or self._trees + options.update_rounds > options.most_trees
        self._trees = options.scratch_rounds if scratch else self._trees + options.update_rounds
        if scratch:
            self._scratch_size = programs
        training = _Training(batches, fresh, scratch)
        if self._waiting is None:
            self._train(training)
            return
        if scratch:
            self._waiting.clear()
        self._waiting.append(training)

    def _train(self, training: "_Training") -> None:
        options, history = self._options, self._history
        if training.batches < len(history.batches):
            history = history.until(training.batches)
        older = options.scratch_programs if training.scratch else options.replay_programs
        data = self._sample(history, older, training)
        if training.scratch:
            self._boost(data, options.scratch_rounds, None, training.batches)
        else:
            self._boost(data, options.update_rounds, self._booster, training.batches)

    def _sample(self, history: History, older: int, training: "_Training") -> TrainingRows:
        """The latest programs and at most `older` earlier programs, drawn with a seed."""
        before = history.programs - training.fresh
        if before <= older:
            return history.rows(self._options.worst_weight)
        chosen = np.ones(history.programs, dtype=bool)
        chosen[:before] = False
        # Seeded by the number of the batch, so a resumed run replays the same sample.
        rng = np.random.default_rng([self._seed, training.batches])
        chosen[rng.choice(before, older, replace=False)] = True
        return history.rows(self._options.worst_weight, chosen)

    def _boost(self, data: TrainingRows, rounds: int, start: "xgboost.Booster | None", update: int) -> None:
        options = self._options
        if not len(data.rows):
            return
        import xgboost

        matrix = xgboost.QuantileDMatrix(data.rows, nthread=self._threads, max_bin=options.max_bin)
        parameters = {
            "tree_method": "hist",
            "max_bin": options.max_bin,
            "max_depth": options.max_depth,
            "eta": options.eta,
            "gamma": 1e-5,
            # As in Ansor: the hessians of this objective are weights, not counts of rows.
            "min_child_weight": 0.0,
            "colsample_bytree": options.column_share,
            # Predictions are summed over a program's statements, so an offset per statement would add up.
            "base_score": 0.0,
            "nthread": self._threads,
            "seed": (self._seed + update) % 2**31,
            # The default metric compares rows with labels, but only whole programs have labels.
            "disable_default_eval_metric": True,
            "verbosity": 0,
        }
        objective = pack_sum_objective(data, self.log_period)
        self._booster = xgboost.train(parameters, matrix, num_boost_round=rounds, obj=objective, xgb_model=start)

    def to_bytes(self) -> bytes:
        """The options and the data of the model; `from_bytes` grows the same trees again, and goes on as this would."""
        facts = {"seed": self._seed, "options": asdict(self._options), "plans": self._plans}
        return archive_of(self._history.batches, facts)

    @classmethod
    def from_bytes(cls, data: bytes, threads: int = 1) -> Self:
        """Read what `to_bytes` wrote, and grow the trees, in some seconds for thousands of programs.

        Raises: StoreError for another version of the features, CorruptRecordError for other data.
        """
        with refuse_wrong_data("cost model"):
            archive = open_archive(data)
            header = header_of(archive, "the cost model is")
            model = cls(integer(header["seed"]), threads, XGBOptions(**header["options"]))
            batches = list(batches_in(archive, header))
            plans = [integer(plan) for plan in header.get("plans", range(1, len(batches) + 1))]
            if sorted(plans) != plans or max(plans, default=0) != len(batches) or model._seed < 0:
                raise ValueError("its plans or its seed are none")
            with model.retracing():
                for start, end in pairwise([0, *plans]):
                    model.learn(batches[start:end])
        return model

    def save(self, path: Path) -> None:
        """Write `to_bytes` to a file atomically; missing folders are made. Raises: StoreError."""
        try:
            with atomic_write(path) as temporary:
                temporary.write_bytes(self.to_bytes())
        except ArtifactError as error:
            raise StoreError(f"the cost model is not saved: {error}") from error

    @classmethod
    def load(cls, path: Path, threads: int = 1) -> Self:
        """Read a file that `save` wrote. Raises: StoreError when it cannot be read or fit; see `from_bytes`."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read the cost model {path}: {error.strerror}") from error
        return cls.from_bytes(data, threads)


def pack_sum_objective(
    data: TrainingRows, log_period: int = 0
) -> Callable[[NDArray[np.float32], "xgboost.DMatrix"], _Gradients]:
    """Squared error of the sum over a program's rows; logged every `log_period` calls, at the level DEBUG.

    All rows of a program move together, so the curvature of a row is the number of rows: with 1, as is common, a
    program of many statements would overshoot and boosting diverge.
    """
    lengths = np.diff(np.append(data.starts, len(data.rows)))
    hessian = np.repeat(data.weights * lengths, lengths).astype(np.float32)
    iterations = count()

    def objective(predictions: NDArray[np.float32], _: "xgboost.DMatrix") -> _Gradients:
        # A segmented sum: a prediction per program from those of its statements, as only programs have measured times.
        error = np.add.reduceat(predictions.astype(np.float64), data.starts) - data.labels
        iteration = next(iterations)
        if log_period > 0 and iteration % log_period == 0:
            _log.debug("XGB iter: %3d\ttr-rmse: %.6f", iteration, np.sqrt(np.mean(error**2)))
        return np.repeat(error * data.weights, lengths).astype(np.float32), hessian

    return objective
