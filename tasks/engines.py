"""The engines that run `build` and `measure`: the task runner of the flow, on this machine or on a fleet.

    no fleet   Prefect's threads; the worker processes of this machine do the work
    dask, ray  workers of Dask or Ray, placed by resources that are named after the queues
    prefect    background tasks, for the task workers that `retune worker` starts

On a fleet, requests and answers are bytes (`retune.compiler.measure.wire`).
"""

import base64
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from prefect import Task, get_client
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL, PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.task_runners import PrefectTaskRunner, TaskRunner

from retune.compiler.driver.worker_service import WorkerService
from retune.compiler.errors import MeasureError, OptionError, RetuneError
from retune.compiler.measure.fleet import BuildRequest, Patience, Pending, Request, TimeRequest
from retune.compiler.measure.wire import from_bytes, to_bytes
from retune.storage.place import is_remote
from retune.tasks.measure import ask_device, build, measure
from retune.tasks.opaque import opaque
from retune.tasks.plan import DASK, PACKAGES, PREFECT, RAY, FleetPlan, fleet_of, require_fleet

LOOK_SECONDS = 2.0
"""How often a run that waits for a fleet looks whether anybody serves it."""
PATIENCE_SECONDS = 1800.0
"""The run fails when nobody has served a queue for so long."""
ATTEMPTS = 5
"""So many workers may be lost with one request."""
SLACK_SECONDS = 120.0
"""What a request may take besides the time limits of its programs: starting processes, preparing buffers."""

_ENGINES = ("distributed", "dask", "ray", "asyncio", "concurrent")
"""The packages of errors that say that an engine cannot go on."""

_LOG = logging.getLogger(__name__)


def task_runner_of(text: str, queues: tuple[str, ...]) -> "TaskRunner[Any]":
    """The Prefect task runner of a fleet; for Dask and Ray without an address a cluster of this machine, which serves
    `queues` and ends with the flow.

    Raises: OptionError when a package is not installed.
    """
    kind, address = require_fleet(text)
    if kind == PREFECT:
        return PrefectTaskRunner()  # type: ignore[no-untyped-call]
    module, resources = import_module(PACKAGES[kind]), dict.fromkeys(queues, 1)
    if kind == DASK:
        local = {"n_workers": 2, "threads_per_worker": 2, "resources": resources, "dashboard_address": None}
        runner = module.DaskTaskRunner(address=address) if address else module.DaskTaskRunner(cluster_kwargs=local)
    else:
        start = {"resources": resources, "include_dashboard": False}
        runner = module.RayTaskRunner(address=address) if address else module.RayTaskRunner(init_kwargs=start)
    made: TaskRunner[Any] = runner
    return made


class FlowEngine:
    """The engine of a flow: requests become runs of its tasks. With a `service` of this process they go there as they
    are; else, as messages, to the workers of a fleet.
    """

    def __init__(self, service: WorkerService | None = None, plan: FleetPlan | None = None) -> None:
        self._service = service
        self._plan = plan
        self._kind = fleet_of(plan.kind)[0] if plan else ""

    def submit(self, queue: str, request: Request, name: str = "") -> Pending:
        """See `retune.compiler.measure.fleet.Engine`; to be called in a flow or one of its tasks."""
        task = {BuildRequest: build, TimeRequest: measure}.get(type(request), ask_device)
        label = name or type(request).__name__.removesuffix("Request").lower()
        if self._service is not None:
            return _LocalRun(task.submit(label, opaque(self._service), opaque(request)))
        message = to_bytes(request)
        storage = self._plan.storage if self._plan and self._kind == PREFECT else ""

        def run() -> PrefectFuture[Any]:
            with self._placed(queue):
                if self._kind != PREFECT:
                    return task.submit(label, queue, message)
                text = base64.b85encode(message).decode()
                return background_task(task, queue, storage).submit(label, queue, text)

        return _FleetRun(self._kind, queue, run, _longest(request), storage)

    @contextmanager
    def _placed(self, queue: str) -> Iterator[None]:
        """Submit to workers that serve the queue."""
        with ExitStack() as stack:
            if not PREFECT_API_URL.value():  # workers that found none would start a server each
                stack.enter_context(temporary_settings({PREFECT_API_URL: _embedded_server()}))
            if self._kind == PREFECT:
                assert self._plan is not None
                stack.enter_context(shared_storage(self._plan.storage))
            else:
                stack.enter_context(_annotation(self._kind, queue))
            yield


@dataclass(slots=True)
class _LocalRun:
    """A task run of a service of this process."""

    future: PrefectFuture[Any]

    def result(self) -> Any:
        """See `Pending`."""
        return self.future.result()

    def cancel(self) -> None:
        """The service ends what it does when it is closed."""


class _FleetRun:
    """A task run on a worker of a fleet, which `submit` begins. Dask and Ray find lost workers; Prefect does not, so a
    background task that runs for more than `longest` seconds is begun again.
    """

    def __init__(
        self, kind: str, queue: str, submit: Callable[[], PrefectFuture[Any]], longest: float, storage: str
    ) -> None:
        self._storage = storage
        self._kind, self._queue, self._submit, self._longest = kind, queue, submit, longest
        self._future = submit()
        self._attempts = 1
        self._running_since: float | None = None

    def result(self) -> Any:
        """See `Pending`. Raises: MeasureError when nobody serves the queue for long, or the engine gave up."""
        patience = Patience(self._queue, PATIENCE_SECONDS)
        while True:
            try:
                with shared_storage(self._storage) if self._storage else nullcontext():
                    answer = self._future.result(timeout=LOOK_SECONDS)
                return from_bytes(base64.b85decode(answer) if isinstance(answer, str) else answer)
            except TimeoutError:
                patience.look(is_served=self._is_served())
                if self._kind == PREFECT and self._is_lost(time.monotonic()):
                    self._begin_again()
            except RetuneError:
                raise
            except BaseException as error:  # the engines' own errors; some are no `Exception`
                if type(error).__module__.partition(".")[0] in _ENGINES:
                    raise MeasureError(
                        f"{self._kind} gave a request for {self._queue} up ({type(error).__name__}: {error}): see "
                        "whether its scheduler runs; the same command goes on from there"
                    ) from error
                raise

    def _is_lost(self, now: float) -> bool:
        """Whether a background task has been running for longer than its work can take."""
        with get_client(sync_client=True) as client:
            state = client.read_task_run(self._future.task_run_id).state
        if state is None or not state.is_running():
            self._running_since = None
        elif self._running_since is None:
            self._running_since = now
        return self._running_since is not None and now - self._running_since > self._longest

    def _begin_again(self) -> None:
        if self._attempts >= ATTEMPTS:
            raise MeasureError(f"{ATTEMPTS} workers of {self._queue} were lost one after the other with one request")
        _LOG.warning("a worker of %s has fallen silent; another one gets what it was doing", self._queue)
        self._future, self._attempts, self._running_since = self._submit(), self._attempts + 1, None

    def cancel(self) -> None:
        """Let Dask forget the run; the others finish it."""
        wrapped = getattr(self._future, "wrapped_future", None)
        if self._kind == DASK and wrapped is not None:
            wrapped.cancel()

    def _is_served(self) -> bool:
        """Whether the engine has a worker that serves the queue."""
        if self._kind == RAY:
            return self._queue in import_module("ray").cluster_resources()
        if self._kind == DASK:
            context = FlowRunContext.get()
            client = getattr(context.task_runner if context else None, "client", None)
            if client is None:
                return True
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            return any(self._queue in worker["resources"] for worker in workers)
        with get_client(sync_client=True) as client:
            found = client._client.post("/task_workers/filter", json={})
            keys = {key for worker in found.json() for key in worker["task_keys"]}
        return any(key.endswith(f"_{self._queue}") for key in keys)


def _longest(request: Request) -> float:
    """More seconds than the request can take."""
    if isinstance(request, BuildRequest):
        return SLACK_SECONDS + len(request.candidates) * request.options.build_timeout_s
    if isinstance(request, TimeRequest):
        return SLACK_SECONDS + len(request.kernels) * request.options.run_timeout_s
    return 10 * SLACK_SECONDS


class _Background:
    """The function of a background task. Prefect knows a task by its function's name and code, of an object by its
    class; so every queue has a class of its own.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, name: str, worker: str, request: str) -> Any:
        """Answer a request."""
        return self._function(name, worker, request)


def background_task(task: "Task[Any, Any]", queue: str, place: str) -> "Task[Any, Any]":
    """The variant of a task that only workers of a queue serve. Prefect keeps its parameters, context and result
    at `place`, the fleet's storage, and pickles them as Dask and Ray do.
    """
    kind = type(f"{task.name}_{queue}", (_Background,), {})
    return Task(
        kind(task.fn),
        name=task.name,
        task_run_name=task.task_run_name,
        retries=task.retries,
        retry_delay_seconds=1,
        retry_condition_fn=task.retry_condition_fn,
        cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda *_: None),  # NO_CACHE would not survive `persist_result`
        persist_result=True,
        result_storage=Path(place),
        result_storage_key="results/{prefect.runtime.task_run.id}",
    )


def shared_storage(place: str) -> AbstractContextManager[Any]:
    """Have Prefect keep parameters and results of background tasks at the fleet's storage."""
    if is_remote(place):
        raise OptionError(
            f"a fleet on Prefect shares a folder, not {place}: mount one on all machines, or use dask://HOST:PORT, "
            "which needs no storage"
        )
    return temporary_settings({PREFECT_LOCAL_STORAGE_PATH: place})


def _embedded_server() -> str:
    from prefect.server.api.server import SubprocessASGIServer  # takes seconds

    server = SubprocessASGIServer()
    if not server.running:
        server.start()
    return server.api_url


def _annotation(kind: str, queue: str) -> AbstractContextManager[Any]:
    """What tasks are submitted in, so that they run on a worker with the queue's resource."""
    if kind == DASK:
        placed: AbstractContextManager[Any] = import_module("dask").annotate(resources={queue: 1})
        return placed
    options: AbstractContextManager[Any] = import_module("prefect_ray.context").remote_options(resources={queue: 1})
    return options
