"""Feature extraction for cost models: one row per statement, one column per feature name.

The columns of `retune.compiler.model.features`: TVM's with corrections, and further ones. Their version is
`FEATURE_VERSION`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.errors import OptionError
from retune.compiler.model.features import FEATURE_NAMES, FEATURE_VERSION
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.program_features import features_of_steps
from retune.compiler.tvm.auto_scheduler.loop_state import State
from retune.compiler.tvm.auto_scheduler.measure import MeasureInput, MeasureResult

__all__ = [
    "FEATURE_VERSION",
    "get_per_store_feature_names",
    "get_per_store_features_from_measure_pairs",
    "get_per_store_features_from_states",
]


def get_per_store_feature_names() -> list[str]:
    return list(FEATURE_NAMES)


def get_per_store_features_from_states(states: Sequence[State], task: SearchTask) -> list[NDArray[np.float32]]:
    """Features (statements, columns) of every program.

    Raises: ScheduleError when a tile size is unknown.
    """
    return [features_of_steps(task, state.steps) for state in states]


def get_per_store_features_from_measure_pairs(
    inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]
) -> tuple[list[NDArray[np.float32]], NDArray[np.float64]]:
    """Features of every program, and throughputs: 1 for the fastest of a task, 0 for a failure.

    Raises: OptionError for a light input; `recover_measure_input` completes it.
    """
    best: dict[str, float] = {}
    for inp, result in zip(inputs, results, strict=True):
        if not isinstance(inp.task, SearchTask):
            raise OptionError("the program was read from a record; recover_measure_input finds its task")
        best[inp.task.identity] = min(result.seconds, best.get(inp.task.identity, np.inf))
    features, labels = [], []
    for inp, result in zip(inputs, results, strict=True):
        assert isinstance(inp.task, SearchTask)
        features.append(features_of_steps(inp.task, inp.state.steps))
        # Throughput relative to the best, as the models learn it: comparable between tasks of different sizes.
        labels.append(best[inp.task.identity] / result.seconds if np.isfinite(result.seconds) else 0.0)
    return features, np.array(labels, dtype=np.float64)
