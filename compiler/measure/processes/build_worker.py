"""Builds the kernels of candidates in a worker process. A candidate that cannot be built is a value."""

import time
from collections.abc import Iterator, Sequence

from retune.compiler.core.errors import MeasureError, ScheduleError
from retune.compiler.ir.stmt import is_function_name
from retune.compiler.measure.attribution import STARTED
from retune.compiler.measure.processes.worker_main import resolve
from retune.compiler.measure.record import Measurement, MeasureStatus, describe
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask

KERNEL_NAME = "retune_kernel"
"""The kernel's name for a task whose own name is no function name."""

_tasks: dict[str, SearchTask] = {}


def knows(key: str) -> bool:
    """Whether this worker has the task with this key."""
    return key in _tasks


def remember(key: str, task: SearchTask, build_func: str) -> None:
    """Keep a task, so that it travels once per worker and not once per candidate, and import its builder."""
    resolve(build_func)
    _tasks[key] = task


def kernel_name(task: SearchTask) -> str:
    """The name of a task's kernels: that of the kernel in a network, so that a network can use them directly."""
    # A task with a key is a user's workload, whose name may be that of a C function and is in no network.
    return task.name if not task.key and is_function_name(task.name) else KERNEL_NAME


def build_stream(key: str, build_func: str, candidates: Sequence[Sequence[Step]]) -> Iterator[str | Measurement]:
    """STARTED, then one result per candidate."""
    if key not in _tasks:
        raise MeasureError("this worker was replaced before it was told of the task; ask again")
    task, build = _tasks[key], resolve(build_func)
    name = kernel_name(task)
    yield STARTED
    for steps in candidates:
        begun = time.perf_counter()
        artifact, status, error = None, MeasureStatus.OK, ""
        try:
            artifact = build(task, steps, name)
        except ScheduleError as failure:
            status, error = MeasureStatus.INSTANTIATION, describe(failure)
        except Exception as failure:  # any other way in which a candidate fails to compile
            status, error = MeasureStatus.COMPILE_HOST, describe(failure)
        yield Measurement((), status, error, time.perf_counter() - begun, artifact=artifact)


def build_reference(task: SearchTask, build_func: str, steps_func: str) -> KernelArtifact:
    """The kernel of the task's default schedule. Raises: whatever building it raises."""
    artifact: KernelArtifact = resolve(build_func)(task, resolve(steps_func)(task.dag, task.hardware), KERNEL_NAME)
    return artifact
