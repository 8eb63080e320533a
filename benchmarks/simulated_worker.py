"""A worker of a fleet on Dask with made-up times.

    python -m benchmarks.simulated_worker '{"fleet": "dask://127.0.0.1:8786", "queues": ["build"]}'

It answers as a real worker would, and logs to standard output every request that it takes, and when it began and ended
to time. The seconds are those of one program, and are slept; so a machine of two cores shows what a fleet of any size
does. The time of a program is that of `benchmarks.simulated`.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.simulated import SimulatedService, Simulation, end_with_parent
from retune.compiler.measure.record import Measurement
from retune.compiler.measure.remote.fleet import BuildRequest, Request, TimeRequest
from retune.compiler.tune.worker_service import THIS_PROCESS
from retune.flows.cli.worker import _serve_dask, serve_until_signal
from retune.tasks.fleet.plan import fleet_of

READY = "serves"


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """The fleet, what a worker serves, and the seconds that building and timing one program take. `is_shared`: the
    worker holds the lock of this machine's CPU while it times, as a real one does.
    """

    fleet: str
    queues: Sequence[str]
    build_seconds: float = 0.0
    time_seconds: float = 0.0
    is_shared: bool = False


class LoggedService(SimulatedService):
    """Logs what it is asked for."""

    def do(self, request: Request) -> Any:
        """See `WorkerService`."""
        logging.info("request: %s", "build" if isinstance(request, BuildRequest) else "time")
        return super().do(request)

    def _time(self, request: TimeRequest) -> list[Measurement]:
        began = time.monotonic()
        found = super()._time(request)
        logging.info("timed from %.4f to %.4f", began, time.monotonic())
        return found


def command(worker: SimulatedWorker) -> list[str]:
    """The command line that runs a worker in its own process."""
    return [sys.executable, "-P", "-m", "benchmarks.simulated_worker", json.dumps(asdict(worker))]


def main(text: str) -> int:
    """Serve until SIGTERM, or until the process that started this one is gone."""
    end_with_parent()
    worker = SimulatedWorker(**json.loads(text))
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s", force=True)
    seconds = worker.build_seconds, worker.time_seconds
    THIS_PROCESS.use(LoggedService(Simulation({}), *seconds, is_shared=worker.is_shared))
    return serve_until_signal(partial(_serve_dask, fleet_of(worker.fleet)[1], worker.queues))


if __name__ == "__main__":
    CODE = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(CODE)
