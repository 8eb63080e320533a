"""Deprecated functions of the first versions of TVM's auto-scheduler; each warns and names its successor."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler.loop_state import State
from retune.compiler.tvm.auto_scheduler.measure import TuningOptions
from retune.compiler.tvm.auto_scheduler.search_task import SearchTask

_SEARCH_ONLY = TuningOptions()


def create_task(
    func: Callable[..., Any] | str,
    args: Sequence[Any],
    target: Target | str,
    target_host: Target | str | None = None,
    hardware_params: HardwareParams | None = None,
) -> SearchTask:
    """`SearchTask` with these arguments. Raises: as that."""
    warnings.warn("create_task is deprecated; use SearchTask(func=..., args=...)", DeprecationWarning, stacklevel=2)
    return SearchTask(func=func, args=args, target=target, target_host=target_host, hardware_params=hardware_params)


def auto_schedule(
    task: SearchTask, search_policy: Any = None, tuning_options: TuningOptions = _SEARCH_ONLY
) -> tuple[State, list[Tensor]]:
    """Tune a task and apply the best program, see `SearchTask.tune` and `SearchTask.apply_best`."""
    warnings.warn(
        "auto_schedule is deprecated; use task.tune(tuning_options) and task.apply_best(log_file)",
        DeprecationWarning,
        stacklevel=2,
    )
    return task.searched(tuning_options, search_policy)
