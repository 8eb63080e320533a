"""In: the kind of a fleet, and a queue. Out: word to its workers that an errand waits.

Always: a wake that cannot be sent is no failure, since it is sent again, and workers look by themselves now and then.

    folder     nothing is sent: workers look at the storage every second
    prefect    a background task of the queue, for the task workers that `retune worker` starts
    dask, ray  a task of the flow, which the flow's task runner gives to a worker with the queue's resource
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import httpx
from prefect import Task, task
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy
from prefect.exceptions import PrefectException
from prefect.task_runners import TaskRunner

from retune.compiler.errors import OptionError, install_hint
from retune.storage.errands import ErrandStore
from retune.tasks.agent import agent_for
from retune.tasks.courier import Wake

FOLDER, PREFECT, DASK, RAY = "folder", "prefect", "dask", "ray"
FLEETS = (FOLDER, PREFECT, DASK, RAY)

_SCHEMES = {DASK: "tcp", RAY: "ray"}
_PACKAGES = {DASK: "prefect_dask", RAY: "prefect_ray"}
_LOG = logging.getLogger(__name__)


def fleet_of(text: str) -> tuple[str, str]:
    """The kind of fleet, and its address if it has one, that a text such as `dask://10.0.0.5:8786` names.

    Raises: OptionError.
    """
    kind, sign, place = text.partition("://")
    if kind not in FLEETS or (sign and (kind not in _SCHEMES or not place)):
        raise OptionError(f"a fleet is {', '.join(FLEETS)}, dask://HOST:PORT or ray://HOST:PORT, not {text!r}")
    return kind, f"{_SCHEMES[kind]}://{place}" if place else ""


def task_runner_of(text: str, queues: tuple[str, ...]) -> "TaskRunner[Any] | None":
    """The Prefect task runner of a fleet of Dask or Ray; without an address a cluster of this machine, which serves
    `queues` and ends with the flow. None for other fleets.

    Raises: OptionError when a package is not installed.
    """
    kind, address = fleet_of(text)
    if kind not in _PACKAGES:
        return None
    module, resources = _package(kind), dict.fromkeys(queues, 1)
    if kind == DASK:
        local = {"n_workers": 2, "threads_per_worker": 1, "resources": resources, "dashboard_address": None}
        runner = module.DaskTaskRunner(address=address) if address else module.DaskTaskRunner(cluster_kwargs=local)
    else:
        start = {"resources": resources, "include_dashboard": False}
        runner = module.RayTaskRunner(address=address) if address else module.RayTaskRunner(init_kwargs=start)
    made: TaskRunner[Any] = runner
    return made


def wake_of(text: str, store: ErrandStore) -> Wake:
    """How to wake the workers of a fleet. Raises: OptionError when a package is not installed."""
    kind, _ = fleet_of(text)
    if kind == FOLDER:
        return lambda queue: None  # noqa: ARG005 - a wake has a queue
    if kind == PREFECT:
        return _wake_by_background_task
    annotated = _annotation(kind)

    def wake(queue: str) -> None:
        with annotated(queue):
            serve_queue.submit(store.place, queue)

    return wake


class ServeQueue:
    """What a background task does: all errands of a queue that wait. Prefect knows a task by its function's name and
    code, which differ between machines; of an object it takes the class, so every queue has a class of its own.
    """

    def __init__(self, drain: Callable[[], int]) -> None:
        self._drain = drain

    def __call__(self) -> int:
        """Do the errands; how many there were."""
        return self._drain()


def background_task(queue: str, drain: Callable[[], int] = lambda: 0) -> "Task[[], int]":
    """The task by which the workers of a queue are woken; only a worker needs `drain`. It takes no parameters, so
    nothing is pickled for it, and is never answered from a cache. Prefect's task workers keep what it returns, a
    number: as JSON, where Prefect would pickle.
    """
    kind = type(f"ServeQueue_{queue}", (ServeQueue,), {})
    never = CacheKeyFnPolicy(cache_key_fn=lambda *_: None)
    return Task(kind(drain), name=f"serve-{queue}", cache_policy=never, result_serializer="json")


@task(name="serve-queue", task_run_name="serve-{queue}", cache_policy=NO_CACHE)
def serve_queue(place: str, queue: str) -> int:
    """Do the errands of a queue that wait, on a worker of Dask or Ray; how many there were."""
    return agent_for(place, queue).drain()


def _wake_by_background_task(queue: str) -> None:
    try:
        background_task(queue).delay()
    except (httpx.HTTPError, PrefectException, OSError) as error:
        _LOG.warning("the workers of %s could not be woken: %s", queue, error)


def _annotation(kind: str) -> Callable[[str], AbstractContextManager[Any]]:
    """What tasks are submitted in, so that they run on a worker with the queue's resource."""
    _package(kind)
    if kind == DASK:
        return lambda queue: import_module("dask").annotate(resources={queue: 1})
    options = import_module("prefect_ray.context").remote_options
    return lambda queue: options(resources={queue: 1})


def _package(kind: str) -> Any:
    try:
        return import_module(_PACKAGES[kind])
    except ImportError as error:
        raise OptionError(
            f"a fleet of {kind} needs the package {_PACKAGES[kind].replace('_', '-')}: {install_hint(kind)}"
        ) from error
