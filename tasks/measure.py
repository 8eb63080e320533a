"""The two tasks of a round, `build` and `measure`.

One result a program, in order: a failed program is a value, a failed machine an error that is retried.
"""

import base64
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from retune.compiler.core.errors import MeasureError
from retune.compiler.tune.worker_service import WorkerService, serve
from retune.tasks.fleet.device_limit import device_limit


def _has_machine_failed(_: object, __: TaskRun, state: State[object]) -> bool:
    """Whether to try again: not after failures of a program or mistakes of a user."""
    # `state.data` is the exception itself as long as the state was made in this process.
    return isinstance(state.data, MeasureError)


# A worker that was lost is replaced before the next try.
RETRIES = 2

_RETRIED: dict[str, Any] = {
    "retries": RETRIES, "retry_delay_seconds": 1, "retry_condition_fn": _has_machine_failed, "cache_policy": NO_CACHE,
}  # fmt: skip
"""A failed machine is asked again."""

Worker = WorkerService | str
"""A service of this process, or the queue that another process serves."""


@task(name="build", task_run_name="build-{name}", **_RETRIED)
def build(name: str, worker: Worker, request: object) -> Any:
    """Build the programs of a chunk. Request and answer are messages where the worker is another process."""
    return _answer(worker, request)


@task(name="measure", task_run_name="measure-{name}", **_RETRIED)
def measure(name: str, worker: Worker, request: object) -> Any:
    """Time the programs of a chunk, each alone. A program that is clearly slower than the best is not repeated."""
    return _answer(worker, request)


@task(name="ask-device", task_run_name="ask-{name}", cache_policy=NO_CACHE)
def ask_device(name: str, worker: Worker, request: object) -> Any:
    """Have the machine of a device describe itself, compare networks, or find its limits."""
    return _answer(worker, request)


def _answer(worker: Worker, request: Any) -> Any:
    if not isinstance(worker, str):
        return worker.do(request)
    if isinstance(request, bytes):
        return serve(worker, request)
    with device_limit(worker):  # a background task of a Prefect server
        return base64.b85encode(serve(worker, base64.b85decode(request))).decode()
