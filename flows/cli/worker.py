"""A worker of a fleet: builds programs and times them for runs on other machines until a signal ends it.

It joins the scheduler of Dask, or serves background tasks of a Prefect server. It ends within seconds, with the exit
code of the signal, and another worker repeats what it was doing. Run as `retune worker`, see
`retune.flows.cli.app`.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

from prefect.settings import PREFECT_API_URL
from prefect.task_worker import TaskWorker

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError, without_passwords
from retune.compiler.measure.processes.device_lock import lock_name
from retune.compiler.measure.remote.fleet import BUILD, queues_of, require_scheduler
from retune.compiler.tune.worker_service import THIS_PROCESS
from retune.flows.cli import exits
from retune.flows.cli.commands.output import Mode, complain, json_line
from retune.flows.cli.launch import SIGNALS, set_handler
from retune.flows.cli.toplevel import run_guarded
from retune.flows.server.run_server import server_errors
from retune.tasks.fleet.device_limit import ensure_limit
from retune.tasks.fleet.engines import background_task, shared_storage
from retune.tasks.fleet.plan import PREFECT, fleet_of, require_fleet
from retune.tasks.measure import ask_device, build, measure

# A flag that is asked, and no handler of asyncio: Prefect's worker sets its own handlers.
POLL_SECONDS = 0.2
"""How often a worker checks for a signal."""
LEAVE_SECONDS = 10.0
"""How long a worker takes at most to leave its engine."""
RECONNECT_SECONDS = 5.0

_LOG = logging.getLogger(__name__)

IsStopping = Callable[[], bool]
"""Whether a signal has asked the worker to end."""


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What a worker does."""

    fleet: str
    """The kind of the fleet and its address."""
    storage: str
    """The folder that the machines of a Prefect server share."""
    build: bool
    """Whether it builds."""
    device: str
    """The key of the device that it times on; "" if it times nothing."""
    parallel: int | None = None
    """Processes that build; None: one per core."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the worker serves, timing first."""
        timing = queues_of(self.device) if self.device else ()
        return (*timing, *((BUILD,) if self.build else ()))


class LineFormatter(logging.Formatter):
    """A log line for people: when, and what, without passwords of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the lines of a traceback below it."""
        return without_passwords(super().format(record))


class JsonFormatter(logging.Formatter):
    """A log line as one JSON object: `time` in seconds since 1970, `level`, `text`."""

    def format(self, record: logging.LogRecord) -> str:
        return json_line({"time": record.created, "level": record.levelname, "text": record.getMessage()})


def show_log(mode: Mode) -> None:
    """Tell what happens: on stderr, or on stdout as JSON; with nothing but warnings when it is to be quiet."""
    handler = logging.StreamHandler(sys.stdout if mode is Mode.JSON else sys.stderr)
    handler.setFormatter(JsonFormatter() if mode is Mode.JSON else LineFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.WARNING if mode is Mode.QUIET else logging.INFO, handlers=[handler], force=True)
    for name in ("distributed", "httpx", "prefect"):
        logging.getLogger(name).setLevel(logging.WARNING)


def main(mode: Mode, job: Mapping[str, Any]) -> None:
    """Do what `job` says, the fields of a `WorkerJob`, until a signal comes; then end this process."""
    code = run_guarded(partial(_work, mode, WorkerJob(**job)))
    sys.stdout.flush()
    os._exit(code)  # threads of the engine may still wait for requests that were given up


def _work(mode: Mode, job: WorkerJob) -> int:
    """Returns the exit code."""
    show_log(mode)
    THIS_PROCESS.parallel = job.parallel
    with server_errors():
        kind, address = fleet_of(job.fleet)
        if kind == PREFECT:
            if not PREFECT_API_URL.value():
                complain("set PREFECT_API_URL to the address of the fleet's Prefect server first")
                return exits.USER_ERROR
            if job.device:
                ensure_limit(lock_name(job.device))
            with shared_storage(job.storage):
                return serve_until_signal(partial(_serve_prefect, job.queues, job.storage))
        if not address:
            raise OptionError("say which scheduler the worker joins: --fleet dask://HOST:8786")
        require_fleet(job.fleet)
        return serve_until_signal(partial(_serve_dask, address, job.queues))


def serve_until_signal(serve: Callable[[IsStopping], Coroutine[object, object, None]]) -> int:
    """Call `serve` until a signal comes; the exit code of the first. Nothing of the worker is left then."""
    signals: list[int] = []

    def end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
        signals.append(signum)

    for number in SIGNALS:
        set_handler(number, end)
    asyncio.run(serve(lambda: bool(signals)))
    _LOG.info("%s ends", worker_name())
    THIS_PROCESS.close()
    return exits.signal_exit_code(signals[0])


def worker_name() -> str:
    """What tells this worker from others."""
    return f"{config.host_name()}, process {os.getpid()}"


async def _serve_dask(address: str, queues: Sequence[str], is_stopping: IsStopping) -> None:
    """Join a scheduler of Dask; a scheduler that went away is asked again until it is back."""
    distributed: Any = import_module("distributed")
    offered = dict.fromkeys(queues, 1.0)
    threads = (BUILD in queues) + any(queue != BUILD for queue in queues)
    while not is_stopping():
        try:
            await asyncio.to_thread(require_scheduler, address)
            worker = await distributed.Worker(
                address, name=worker_name(), nthreads=threads, resources=offered, memory_limit=0, dashboard=False
            )
            _LOG.info("%s serves %s", worker_name(), ", ".join(queues))
            try:
                while not is_stopping() and worker.status.name == "running":
                    await asyncio.sleep(POLL_SECONDS)
            finally:
                await worker.close(timeout=LEAVE_SECONDS, executor_wait=False)
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            _LOG.warning("%s; trying again", str(error) or f"no scheduler of Dask answers at {address}")
            await asyncio.sleep(RECONNECT_SECONDS)


async def _serve_prefect(queues: Sequence[str], folder: str, is_stopping: IsStopping) -> None:
    """Serve background tasks; a server that went away is asked again until it is back."""
    tasks = [background_task(task, queue, folder) for queue in queues for task in (build, measure, ask_device)]
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    while not is_stopping():
        # Two at once: a build and a timing, as with the threads of a worker of Dask.
        worker = asyncio.create_task(TaskWorker(*tasks, limit=2).astart())
        _LOG.info("%s serves %s", worker_name(), ", ".join(queues))
        while not is_stopping() and not worker.done():
            await asyncio.sleep(POLL_SECONDS)
            for number, handler in handlers.items():  # Prefect's worker sets its own when it begins
                signal.signal(number, handler)
        worker.cancel()
        try:
            await worker
        except asyncio.CancelledError:
            pass
        except Exception as error:  # whatever the connection ends with
            _LOG.warning("not connected to the Prefect server (%s); trying again", error)
            await asyncio.sleep(RECONNECT_SECONDS)
