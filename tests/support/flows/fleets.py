"""Fleets of every engine for tests: what serves them, a worker of each queue, and a way to strike one at its work."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from benchmarks.fleet import scheduling
from retune.compiler.measure.remote.fleet import BUILD, device_queue
from retune.tasks.fleet.plan import DASK, PREFECT
from tests.support.flows.fleet_workers import strike_at_work, worker
from tests.support.flows.servers import free_port, server

TTL_SECONDS = 8
START_SECONDS = 120.0
DEVICE = "cpu"


class Fleet(Protocol):
    """A fleet that serves the queues `BUILD` and that of `DEVICE`, each by one worker. `name` is for `--fleet`."""

    kind: str
    name: str

    def strike(self, queue: str, number: int) -> int:
        """Send the worker of a queue a signal while it has processes that build or time; the process that got it."""
        ...

    def replace(self, queue: str) -> Path | None:
        """Start another worker of the queue, where the engine does not do so. What it says goes to the file."""
        ...


@dataclass(slots=True)
class WorkerFleet:
    """Workers as `retune worker` starts them."""

    kind: str
    name: str
    folder: Path
    stack: ExitStack
    options: Sequence[str] = ()
    settings: dict[str, str] = field(default_factory=dict)
    workers: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def replace(self, queue: str) -> Path | None:
        """See `Fleet`."""
        served = ("--build", "--processes", "1") if queue == BUILD else ("--device", DEVICE)
        log = self.folder / f"{queue}-{len(list(self.folder.glob('*.log')))}.log"
        begun = worker(log, *served, "--fleet", self.name, *self.options, settings=self.settings)
        self.workers[queue] = self.stack.enter_context(begun)
        return log

    def strike(self, queue: str, number: int) -> int:
        """See `Fleet`."""
        strike_at_work(self.workers[queue], number)
        return self.workers[queue].pid


@contextmanager
def dask_fleet(folder: Path) -> Iterator[Fleet]:
    """A scheduler of Dask that gives a silent worker up after a few seconds."""
    pytest.importorskip("prefect_dask")
    settings = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL_SECONDS} s"}
    with ExitStack() as stack:
        name = stack.enter_context(scheduling(folder, settings=settings))
        yield served(WorkerFleet(DASK, name, folder, stack))


@contextmanager
def prefect_fleet(folder: Path) -> Iterator[WorkerFleet]:
    """Background tasks of a Prefect server. The one inside a test's process never frees what a lost worker held."""
    port, storage = free_port(), str(folder / "fleet")
    settings = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETUNE_FLEET_STORAGE", storage)
        stack.enter_context(server(folder / "prefect", port))
        stack.enter_context(prefect_server_at(settings["PREFECT_API_URL"]))
        yield served(WorkerFleet(PREFECT, PREFECT, folder, stack, ("--storage", storage), settings))


@contextmanager
def prefect_server_at(url: str) -> Iterator[None]:
    """Use another Prefect server in this process. Prefect sends the states of task runs as events, by a thread that
    keeps the server it began with: so it ends at every change, or it would wait for a server that is gone.
    """
    EventsWorker.drain_all()
    with temporary_settings({PREFECT_API_URL: url}):
        try:
            yield
        finally:
            EventsWorker.drain_all()


def served(fleet: WorkerFleet) -> WorkerFleet:
    """The fleet with a worker of either queue."""
    for queue in (BUILD, device_queue(DEVICE)):
        fleet.replace(queue)
    return fleet


FLEETS: dict[str, Callable[[Path], AbstractContextManager[Fleet]]] = {
    DASK: dask_fleet,
    PREFECT: prefect_fleet,
}
