"""In: a fleet's storage and what this machine is to do for it. Out: programs built and timed, for any run. Always: ends
within seconds when told to, with the exit code of the signal, and what it was doing goes to another worker at once.

Run as `retune worker`, see `retune.flows.cli`.
"""

import asyncio
import contextlib
import json
import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import FrameType

from prefect.settings import PREFECT_API_URL
from prefect.task_worker import TaskWorker

from retune.compiler import config
from retune.compiler.errors import StoreError, without_passwords
from retune.compiler.measure.fleet import BUILD, queues_of
from retune.flows import exits
from retune.flows.commands.output import Mode, complain, json_line
from retune.flows.launch import SIGNALS, set_handler
from retune.flows.server import server_errors
from retune.flows.toplevel import guarded
from retune.storage.errands import ErrandStore
from retune.storage.place import veiled
from retune.tasks.agent import Agent
from retune.tasks.lanes import device_lane, ensure_limit, lane_name, lane_of
from retune.tasks.wakes import PREFECT, background_task, fleet_of

LOOK_SECONDS = 1.0
"""How often a worker that nobody wakes looks for errands."""
LOOK_WOKEN_SECONDS = 5.0
"""The same for one that is woken, in case a wake was lost."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What a worker does: build, with `parallel` processes (None: one per core), and time as a device of the key
    `device` ("": not). `fleet` is the kind of the fleet, `storage` the place it shares.
    """

    fleet: str
    storage: str
    build: bool
    device: str
    parallel: int | None = None

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
        """The line."""
        return json_line({"time": record.created, "level": record.levelname, "text": record.getMessage()})


def show_log(mode: Mode) -> None:
    """Tell what happens: on stderr, or on stdout as JSON; with nothing but warnings when it is to be quiet."""
    handler = logging.StreamHandler(sys.stdout if mode is Mode.JSON else sys.stderr)
    handler.setFormatter(JsonFormatter() if mode is Mode.JSON else LineFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.WARNING if mode is Mode.QUIET else logging.INFO, handlers=[handler], force=True)
    for name in ("httpx", "prefect"):
        logging.getLogger(name).setLevel(logging.WARNING)


def main(mode: Mode, text: str) -> int:
    """Work until told to end. `text` is a `WorkerJob` as JSON. Returns the exit code."""
    job = WorkerJob(**json.loads(text))
    for url in config.places():
        veiled(url)
    show_log(mode)
    with server_errors():
        kind, _ = fleet_of(job.fleet)
        woken = kind == PREFECT
        if woken and not PREFECT_API_URL.value():
            complain("set PREFECT_API_URL to the address of the fleet's Prefect server first")
            return exits.USER_ERROR
        if woken and job.device:
            ensure_limit(lane_name(lane_of(job.device)))
        lane = partial(device_lane, lane_of(job.device), limited=woken) if job.device else nullcontext
        with Agent(ErrandStore(job.storage), job.queues, job.parallel, lane) as agent:
            return _serve(agent, job.queues, woken=woken)


def _serve(agent: Agent, queues: Sequence[str], *, woken: bool) -> int:
    """Do errands until a signal ends it; the exit code of the first one."""
    over = threading.Event()
    signals: list[int] = []

    def end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
        signals.append(signum)
        over.set()
        agent.leave()

    for number in SIGNALS:
        set_handler(number, end)
    if woken:
        threading.Thread(target=_listen, args=(agent, queues, over), name="task-worker", daemon=True).start()
    _LOG.info("%s serves %s", agent.name, ", ".join(queues))
    while not over.is_set():
        try:
            agent.drain()
        except StoreError as error:
            _LOG.warning("%s; trying again", error)
        over.wait(LOOK_WOKEN_SECONDS if woken else LOOK_SECONDS)
    _LOG.info("%s was told to end", agent.name)
    return exits.stopped_by(signals[0])


def _listen(agent: Agent, queues: Sequence[str], over: threading.Event) -> None:
    """Be woken by background tasks; a server that went away is asked again until it is back."""
    while not over.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            try:
                asyncio.run(_listen_once(agent, queues))
            except Exception as error:  # whatever the connection ends with: the worker looks by itself meanwhile
                _LOG.warning("not connected to the Prefect server (%s); trying again", error)
        over.wait(LOOK_WOKEN_SECONDS)


async def _listen_once(agent: Agent, queues: Sequence[str]) -> None:
    await TaskWorker(*(background_task(queue, agent.drain) for queue in queues), limit=1).astart()


if __name__ == "__main__":
    sys.exit(guarded(partial(main, Mode(sys.argv[1]), sys.argv[2])))
