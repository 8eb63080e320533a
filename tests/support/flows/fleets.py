"""Fleets of every engine for tests: what serves them, a worker of each queue, and a way to strike one at its work."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
import pytest
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from benchmarks.fleet import scheduling
from retune.compiler import config
from retune.compiler.measure.fleet import BUILD, device_queue
from retune.tasks.plan import DASK, PREFECT, RAY
from tests.support.flows.fleet_workers import STRIKE_SECONDS, strike_at_work, wait_until, worker
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


@dataclass(slots=True)
class RayFleet:
    """One machine of Ray, which starts a process for what it does and another one when that is lost."""

    name: str
    node: "subprocess.Popen[bytes]"
    kind: str = RAY

    def replace(self, queue: str) -> Path | None:  # noqa: ARG002 - Ray does so itself
        """See `Fleet`."""
        return None

    def strike(self, queue: str, number: int) -> int:
        """See `Fleet`."""
        title = "ray::build" if queue == BUILD else "ray::measure"
        found: list[psutil.Process] = []

        def is_at_work() -> bool:
            for process in psutil.Process(self.node.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if title in " ".join(process.cmdline()) and process.children():
                        found.append(process)
                        return True
            return False

        wait_until(is_at_work, STRIKE_SECONDS)
        found[0].send_signal(number)
        return found[0].pid


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


@contextmanager
def ray_fleet(folder: Path) -> Iterator[Fleet]:
    """A cluster of Ray of one machine. A token is in the environment, which Ray reads once in a process."""
    pytest.importorskip("prefect_ray")
    with ray_node(folder, free_port()) as (name, node):
        yield RayFleet(name, node)


@contextmanager
def ray_node(folder: Path, port: int) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The first machine of a Ray cluster; its name for `--fleet`, and the process that ends with it."""
    offered = json.dumps({BUILD: 1, device_queue(DEVICE): 1})
    options = ["--resources", offered, "--include-dashboard", "false", "--disable-usage-stats"]
    ports = ["--port", str(free_port()), "--ray-client-server-port", str(port)]
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = config.child_environment({"PYTHONPATH": paths})
    log = folder / f"ray-{free_port()}.log"
    with tempfile.TemporaryDirectory(
        prefix="ray-", ignore_cleanup_errors=True
    ) as session:  # its sockets need a short path
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--temp-dir", session]
        with log.open("wb") as stream:
            node = subprocess.Popen([*command, *ports, *options], stdout=stream, stderr=stream, env=environment)
        try:
            wait_until(lambda: is_open(port) or node.poll() is not None, START_SECONDS)
            assert node.poll() is None, log.read_text()
            yield f"{RAY}://127.0.0.1:{port}", node
        finally:
            end_tree(node)
            with suppress(shutil.Error, OSError):  # what Ray says, next to what the test has said
                shutil.copytree(Path(session) / "session_latest" / "logs", log.with_suffix(""))


def is_open(port: int) -> bool:
    """Whether a process listens on a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def end_tree(node: "subprocess.Popen[bytes]") -> None:
    """Kill a machine of Ray and all that it started: what names its folder for temporary files, whatever its parent."""
    arguments = node.args
    assert isinstance(arguments, list)
    session = arguments[arguments.index("--temp-dir") + 1]
    children = psutil.Process(node.pid).children(recursive=True) if node.poll() is None else []
    node.kill()
    for process in [*children, *psutil.process_iter()]:
        with suppress(psutil.Error):
            if process in children or any(session in word for word in process.cmdline()):
                process.kill()
    node.wait()


FLEETS: dict[str, Callable[[Path], AbstractContextManager[Fleet]]] = {
    DASK: dask_fleet,
    PREFECT: prefect_fleet,
    RAY: ray_fleet,
}
