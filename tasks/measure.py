"""The two tasks of a round, `build` and `measure`, and the round that submits them in chunks.

One result a program, in order: a failed program is a value, a failed machine an error that is retried.
"""

import base64
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.driver.worker_service import WorkerService, serve
from retune.compiler.errors import MeasureError
from retune.compiler.measure.fleet import BUILD, BuildRequest, Engine, Pending, TimeRequest, chunks
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.results import BuiltProgram, Measurement, in_order
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import Candidate
from retune.storage.files import new_id
from retune.tasks.device_limit import device_limit
from retune.tasks.retry import after

# A worker that was lost is replaced before the next try.
RETRIES = 2

_RETRIED: dict[str, Any] = {
    "retries": RETRIES,
    "retry_delay_seconds": 1,
    "retry_condition_fn": after(MeasureError),
    "cache_policy": NO_CACHE,
}
"""A failed machine is asked again."""

Worker = WorkerService | str
"""A service of this process, or the queue that another process serves."""


@task(name="build", task_run_name="build-{name}", **_RETRIED)
def build(name: str, worker: Worker, request: Any) -> Any:
    """Build the programs of a chunk. Request and answer are messages where the worker is another process."""
    return _answer(worker, request)


@task(name="measure", task_run_name="measure-{name}", **_RETRIED)
def measure(name: str, worker: Worker, request: Any) -> Any:
    """Time the programs of a chunk, each alone. One that is clearly slower than the best is not repeated."""
    return _answer(worker, request)


@task(name="ask-device", task_run_name="ask-{name}", cache_policy=NO_CACHE)
def ask_device(name: str, worker: Worker, request: Any) -> Any:
    """Have the machine of a device describe itself, compare networks, or find its limits."""
    return _answer(worker, request)


def measure_round(
    name: str,
    engine: Engine,
    queue: str,
    search_task: SearchTask,
    candidates: Sequence[Candidate],
    best_seconds: float,
    options: MeasureOptions,
    at_once: int,
) -> tuple[list[BuiltProgram], list[Measurement]]:
    """Build a round's programs, `at_once` in a chunk, and time each chunk on the device of a queue once it is built.

    Raises: MeasureError when nothing could be measured for reasons that lie outside the programs.
    """
    pending: list[Pending] = []

    def submit(number: int, queue: str, request: BuildRequest | TimeRequest) -> Pending:
        pending.append(engine.submit(queue, request, f"{name}-{number}" if len(parts) > 1 else name))
        return pending[-1]

    parts = list(chunks([candidate.steps for candidate in candidates], at_once))
    # By this name a worker knows chunks of one round, and gives up early what is slower than those before.
    token = new_id()
    try:
        building = [submit(place, BUILD, BuildRequest(search_task, part, options)) for place, part in enumerate(parts)]
        timing: list[tuple[list[BuiltProgram], Pending | None]] = []
        # In order of submission: a chunk is timed as soon as it is built, while later ones build.
        for place, each in enumerate(building):
            builds: list[BuiltProgram] = each.result()
            request = TimeRequest.of(search_task, builds, options, best=best_seconds, round=token)
            timing.append((builds, submit(place, queue, request) if request.kernels else None))
        built = [one for builds, _ in timing for one in builds]
        found = [time for _, times in timing if times is not None for time in times.result()]
    # Also on Ctrl-C: requests that are left would occupy the fleet after the run has ended.
    except BaseException:
        for each in pending:
            each.cancel()
        raise
    return built, in_order(built, found)


def _answer(worker: Worker, request: Any) -> Any:
    if not isinstance(worker, str):
        return worker.do(request)
    if isinstance(request, bytes):
        return serve(worker, request)
    with device_limit(worker):  # a background task of a Prefect server
        return base64.b85encode(serve(worker, base64.b85decode(request))).decode()
