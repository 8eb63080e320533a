"""The engines that run `build` and `measure`: the task runner of the flow, on this machine or on a fleet.

    no fleet   Prefect's threads; the worker processes of this machine do the work
    dask       workers of Dask, placed by resources that are named after the queues
    prefect    background tasks, for the task workers that `retune worker` starts

On a fleet, requests and answers are bytes (`retune.compiler.measure.remote.wire`).
"""

import base64
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from prefect import Task, get_client
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL, PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.task_runners import PrefectTaskRunner, TaskRunner

from retune.compiler.core.errors import MeasureError, OptionError, RetuneError
from retune.compiler.measure.remote.fleet import BuildRequest, Patience, Request, TimeRequest
from retune.compiler.measure.remote.wire import from_bytes, to_bytes
from retune.compiler.tune.worker_service import WorkerService
from retune.storage.store_url import is_remote
from retune.tasks.chain import forget_results, opaque
from retune.tasks.fleet.plan import DASK, PREFECT, FleetPlan, fleet_of, require_fleet
from retune.tasks.measure import ask_device, build, measure

# A poll is two requests to a Prefect server; a run may have dozens of chunks waiting.
POLL_SECONDS = 2.0
"""How often a run that waits for a fleet checks whether a worker serves it."""
PATIENCE_SECONDS = 1800.0
"""The run fails when no worker has served a queue for so long."""
# A request that kills its worker would otherwise take down the fleet, one machine after the other.
ATTEMPTS = 5
"""So many workers may be lost with one request."""
SLACK_SECONDS = 120.0
"""What a request may take in addition to the time limits of its programs: starting processes, preparing buffers."""

_ENGINES = ("distributed", "dask", "asyncio", "concurrent")
"""The packages of errors that say that an engine cannot go on."""

_LOG = logging.getLogger(__name__)


def task_runner_of(text: str, queues: tuple[str, ...]) -> "TaskRunner[Any]":
    """The Prefect task runner of a fleet; for Dask without an address a cluster of this machine, which serves `queues`
    and ends with the flow.

    Raises: OptionError when a package is not installed.
    """
    kind, address = require_fleet(text)
    if kind == PREFECT:
        return PrefectTaskRunner()  # type: ignore[no-untyped-call]
    # A chunk's kernels may be larger than the 10 MB from which on Dask warns in the middle of a run's lines.
    import_module("dask").config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    # Every worker has each queue once: its two threads serve a build and a timing.
    local = {"n_workers": 2, "threads_per_worker": 2, "resources": dict.fromkeys(queues, 1), "dashboard_address": None}
    local["security"] = True  # keys of its own, so that no other account reaches it
    local["preload"] = ["retune.tasks.prefect_import"]
    module = import_module("prefect_dask")
    runner: TaskRunner[Any] = module.DaskTaskRunner(**({"address": address} if address else {"cluster_kwargs": local}))
    return runner


@contextmanager
def engine_errors(text: str) -> Iterator[None]:
    """Tell errors of a fleet's engine, or on the way to it, from faults of ours. Raises: MeasureError."""
    try:
        yield
    except RetuneError:
        raise
    except BaseException as error:  # some are no `Exception`
        is_of_engine = type(error).__module__.partition(".")[0] in _ENGINES
        # An OSError of the system has a number; an error without is a text of some engine.
        is_of_connection = isinstance(error, ConnectionError) or (isinstance(error, OSError) and error.errno is None)
        if is_of_engine or is_of_connection:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise MeasureError(
                f"the fleet {text} failed ({reason}): see whether its scheduler runs; the same "
                "command goes on from there"
            ) from error
        raise


class FlowEngine:
    """The engine of a flow: requests become runs of its tasks. With a `service` of this process they go there as they
    are; else, as messages, to the workers of a fleet.
    """

    def __init__(self, service: WorkerService | None = None, plan: FleetPlan | None = None) -> None:
        self._service = service
        self._plan = plan
        self._kind = fleet_of(plan.kind)[0] if plan else ""

    def submit(self, queue: str, request: Request, name: str = "", after: Sequence[State[object]] = ()) -> "Run":
        """See `retune.compiler.measure.remote.fleet.Engine`; to be called in a flow or one of its tasks. `after` are
        the runs that this run follows.
        """
        forget_results()
        task = {BuildRequest: build, TimeRequest: measure}.get(type(request), ask_device)
        label = name or type(request).__name__.removesuffix("Request").lower()
        kind: dict[str, object] = {"return_state": False, "wait_for": after}
        if self._service is not None:
            return _LocalRun(task.submit(label, opaque(self._service), opaque(request), **kind))
        message = to_bytes(request)
        storage = self._plan.storage if self._plan and self._kind == PREFECT else ""

        def run() -> Any:
            with self._place(queue):
                if self._kind != PREFECT:
                    return task.submit(label, queue, message, **kind)
                # As text: base 85 adds a quarter, base 64 would add a third.
                text = base64.b85encode(message).decode()
                return background_task(task, queue, storage).submit(label, queue, text, **kind)

        return _FleetRun(self._kind, queue, run, _longest(request), storage)

    @contextmanager
    def _place(self, queue: str) -> Iterator[None]:
        """Submit to workers that serve the queue."""
        with ExitStack() as stack:
            if not PREFECT_API_URL.value():  # workers that find none start a server each, which has no login
                raise OptionError("a fleet needs a Prefect server: set PREFECT_API_URL, or use `retune tune`")
            if self._kind == PREFECT:
                assert self._plan is not None
                stack.enter_context(shared_storage(self._plan.storage))
            else:
                stack.enter_context(import_module("dask").annotate(resources={queue: 1}))
            yield


@dataclass(slots=True)
class _LocalRun:
    """A task run of a service of this process."""

    future: PrefectFuture[object]

    def result(self) -> Any:
        """See `Pending`."""
        return self.future.result()

    def cancel(self) -> None:
        """The service ends what it does when it is closed."""


class _FleetRun:
    """A task run on a worker of a fleet, which `submit` begins. Dask finds workers that died or hang, Prefect does not:
    so a background task whose state has not changed for longer than its work can take, `longest` seconds, is submitted
    again.
    """

    def __init__(
        self, kind: str, queue: str, submit: Callable[[], PrefectFuture[bytes | str]], longest: float, storage: str
    ) -> None:
        self._storage = storage
        self._kind, self._queue, self._submit, self._longest = kind, queue, submit, longest
        self.future = submit()
        self._attempts = 1
        self._state: str | None = None
        self._since = time.monotonic()

    def result(self) -> Any:
        """See `Pending`. Raises: MeasureError when no worker serves the queue for long, or one after the other is lost;
        errors of the engine, see `engine_errors`.
        """
        patience = Patience(self._queue, PATIENCE_SECONDS)
        while True:
            try:
                with shared_storage(self._storage) if self._storage else nullcontext():
                    answer = self.future.result(timeout=POLL_SECONDS)
                return from_bytes(base64.b85decode(answer) if isinstance(answer, str) else answer)
            except (TimeoutError, RuntimeError) as error:
                # Prefect reads a task run and its state one after the other, so a state that changes may be missing.
                if not isinstance(error, TimeoutError) and "has no state" not in str(error):
                    raise
                patience.check(is_served=self._is_served())
                if self._kind != DASK and self._is_late(time.monotonic()):
                    self._give_up_worker()

    def _is_late(self, now: float) -> bool:
        """Whether the task run has been in one state for longer than its work can take; each attempt doubles that.

        A worker tells the server of states by events, which it sends after a while. So a task that it had begun when it
        was killed may stay scheduled, just as a task that waits for its turn.
        """
        with get_client(sync_client=True) as client:
            state = client.read_task_run(self.future.task_run_id).state
        name = state.name if state else ""
        if name != self._state:
            self._state, self._since = name, now
        # The limit doubles with each attempt: a slow fleet is not taken for a lost worker again and again.
        return now - self._since > self._longest * float(2 ** (self._attempts - 1))

    def _give_up_worker(self) -> None:
        self._attempts, self._since = self._attempts + 1, time.monotonic()
        if self._attempts > ATTEMPTS:
            raise MeasureError(f"{ATTEMPTS} workers of {self._queue} were lost one after the other with one request")
        _LOG.warning("a worker of %s has fallen silent; another one gets what it was doing", self._queue)
        self.future = self._submit()

    def cancel(self) -> None:
        """Let Dask forget the run; a background task is finished."""
        with suppress(Exception):  # the engine may be why the run is given up
            if self._kind == DASK:
                self.future.wrapped_future.cancel()  # type: ignore[attr-defined]

    def _is_served(self) -> bool:
        """Whether the engine has a worker that serves the queue."""
        if self._kind == DASK:
            context = FlowRunContext.get()
            client = getattr(context.task_runner if context else None, "client", None)
            if client is None:
                return True
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            return any(self._queue in worker["resources"] for worker in workers)
        with get_client(sync_client=True) as client:
            response = client._client.post("/task_workers/filter", json={})
            keys = {key for worker in response.json() for key in worker["task_keys"]}
        return any(key.endswith(f"_{self._queue}") for key in keys)


Run = _LocalRun | _FleetRun


def _longest(request: Request) -> float:
    """More seconds than the request can take."""
    if isinstance(request, BuildRequest):
        return SLACK_SECONDS + len(request.candidates) * request.options.build_timeout_s
    if isinstance(request, TimeRequest):
        return SLACK_SECONDS + len(request.kernels) * request.options.run_timeout_s
    return 10 * SLACK_SECONDS


class _Background:
    """The function of a background task. Prefect knows a task by its function's name and code, of an object by its
    class; so every queue has its own class.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, name: str, worker: str, request: str) -> object:
        return self._function(name, worker, request)


def background_task(task: "Task[..., object]", queue: str, folder: str) -> "Task[..., object]":
    """The variant of a task that only workers of a queue serve. Prefect keeps its parameters, context and result
    at `place`, the fleet's storage, and pickles them as Dask does.
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
        result_storage=Path(folder),
        result_storage_key="results/{prefect.runtime.task_run.id}",
    )


def shared_storage(folder: str) -> AbstractContextManager[object]:
    """Have Prefect keep parameters and results of background tasks at the fleet's storage."""
    if is_remote(folder):
        raise OptionError(
            f"a fleet on Prefect shares a folder, not {folder}: mount one on all machines, or use dask://HOST:PORT, "
            "which needs no storage"
        )
    return temporary_settings({PREFECT_LOCAL_STORAGE_PATH: folder})
