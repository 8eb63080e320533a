"""TVM-compatible dispatch contexts: the program to compile a workload with, from tuning records.

The contexts of `retune.compiler.driver.dispatch`, which also accept the records of this package.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver import dispatch
from retune.compiler.driver.dispatch import DispatchContext, FallbackContext, Record, RecordSource
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.measure.logs.log import LoggedTrial
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tvm.auto_scheduler.cost_model import RandomModel, XGBModel
from retune.compiler.tvm.auto_scheduler.measure import ProgramMeasurer, TuningOptions, trial_of
from retune.compiler.tvm.auto_scheduler.search_policy import SketchPolicy

__all__ = ["ApplyHistoryBest", "ApplyHistoryBestOrSample", "DispatchContext", "FallbackContext"]

_log = logging.getLogger(__name__)

# TVM's values for ApplyHistoryBestOrSample.
_SAMPLING = {"eps_greedy": 0.01, "evolutionary_search_num_iters": 0}
"""Programs are sampled, without evolution."""


class ApplyHistoryBest(dispatch.ApplyHistoryBest):
    """Answers with the fastest recorded program: of this target, else of a target of the same kind.

    `records` is the path of a log or of a folder with logs, a record store, a `RecordReader`, or any iterable of paths,
    pairs of a `MeasureInput` and its `MeasureResult`, trials and records; None is none. `n_lines` limits the lines read
    per log. With `include_compatible` a program of a smaller size is used if there is none of the size itself. With
    `layout` programs measured with that layout option come first.
    Raises: LogFormatError when a log cannot be read.
    """

    def __init__(
        self, records: Any, n_lines: int | None = None, include_compatible: bool = False, *, layout: int | None = None
    ) -> None:
        super().__init__(None, None, include_compatible, layout=layout)
        self.load(records, n_lines)

    def load(self, records: Any, n_lines: int | None = None) -> None:
        """Add records; the faster program of a workload stays. Raises: LogFormatError."""
        if records is None or isinstance(records, (str, Path, RecordSource)):
            super().load(records, n_lines)
        else:
            super().load(list(_entries(records)), n_lines)


class ApplyHistoryBestOrSample(ApplyHistoryBest):
    """Answers like `ApplyHistoryBest`, smaller sizes included, and samples a program for unknown workloads.

    It samples for workloads with heavy operators, or for all with `sample_simple_workloads`. `num_measure` programs are
    measured and the fastest is used; with less than 1 nothing is measured, and the search's first candidate is used
    (where TVM loops forever). `cost_model_file` is a saved `XGBModel`.
    """

    def __init__(
        self,
        records: Any,
        sample_simple_workloads: bool = False,
        cost_model_file: str | Path | None = None,
        num_measure: int = -1,
    ) -> None:
        """Raises: LogFormatError, StoreError when the cost model cannot be read."""
        # As in TVM: a program of a smaller size is free, a sample costs measurements.
        super().__init__(records, include_compatible=True)
        self.sample_simple_workloads = sample_simple_workloads
        self.num_measure = num_measure
        self._model: XGBModel | RandomModel = RandomModel()
        if cost_model_file is not None:
            self._model = XGBModel()
            self._model.load(cost_model_file)

    def query(self, target: Target, workload_key: str, has_complex_op: bool, dag: ComputeDAG) -> State | None:
        """The state of `dag` to compile for `target`; None for light workloads, and if no valid program exists."""
        state = self.known(target, workload_key, dag)
        if state is None and (has_complex_op or self.sample_simple_workloads):
            state = self._sample(target, workload_key, dag)
            if state is not None:
                self.update(target, workload_key, state)
        return state if state is not None else super().query(target, workload_key, has_complex_op, dag)

    def _sample(self, target: Target, workload_key: str, dag: ComputeDAG) -> State | None:
        _log.info("no record knows %s: %d programs are tried", workload_key, max(0, self.num_measure))
        hardware = hardware_of(target, len(usable_cpus()))
        layout = LayoutRewriteOption.get_target_default(target, in_relay_integration=True)
        task = SearchTask(workload_key, dag, target, hardware, workload_key, layout)
        policy = SketchPolicy(task, self._model, _SAMPLING, verbose=0)
        if self.num_measure < 1:
            first = policy.propose(1)
            return replay(dag, first[0].state.steps) if first else None
        with ProgramMeasurer.of(TuningOptions(verbose=0), [task]) as measurer:
            best = policy.search(self.num_measure, None, self.num_measure, measurer)
        return None if best is None else best.value


def _entries(records: Iterable[Any]) -> Iterator[Record]:
    for record in records:
        if isinstance(record, (str, Path, LoggedTrial, MeasureRecord)):
            yield record
        elif isinstance(record, tuple) and len(record) == 2:
            yield trial_of(*record)
        else:
            raise OptionError(
                f"a record is a path, a trial, a stored record, or a MeasureInput with its result, not {record!r}"
            )
