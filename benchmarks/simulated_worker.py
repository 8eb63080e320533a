"""In: a place that a fleet shares, queues, and how long work takes, as JSON. Out: a worker with made-up times. Always:
it answers as a real worker would, and logs every errand that it takes to standard output.

    python -m benchmarks.simulated_worker '{"place": "...", "queues": ["build"], "build_seconds": 0.05}'

The seconds are those of one program, and are slept; so a machine of two cores shows what a fleet of any size does. The
time of a program is that of `benchmarks.simulated`.
"""

import json
import logging
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from types import FrameType
from typing import Any

from benchmarks.simulated import end_with_parent, made_up_seconds
from retune.compiler.driver.bench import Bench
from retune.compiler.measure.fleet import BUILD_VERB, TIME_VERB, BuiltKernel, Objects
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.results import MeasureResult
from retune.compiler.measure.wire import from_bytes, to_bytes
from retune.storage.errands import ErrandStore
from retune.tasks.agent import Agent

LOOK_SECONDS = 0.02
READY = "serves"


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """What a worker serves, and the seconds that building and timing one program take."""

    place: str
    queues: Sequence[str]
    build_seconds: float = 0.0
    time_seconds: float = 0.0


class SimulatedBench(Bench):
    """Builds nothing and runs nothing; a kernel is the program's own text."""

    def __init__(self, worker: SimulatedWorker) -> None:
        super().__init__(1)
        self._worker = worker
        self._over = threading.Event()

    def answer(self, verb: str, message: bytes, objects: Objects) -> bytes:
        """See `retune.compiler.driver.bench.Bench`."""
        if verb not in (BUILD_VERB, TIME_VERB):
            return super().answer(verb, message, objects)
        request: Mapping[str, Any] = from_bytes(message)
        found = self._built(request, objects) if verb == BUILD_VERB else self._timed(request, objects)
        return to_bytes({"error": "", "value": found})

    def stop(self) -> None:
        """End what is being done."""
        self._over.set()
        super().stop()

    def _built(self, request: Mapping[str, Any], objects: Objects) -> list[tuple[Any, ...]]:
        key = from_bytes(objects.get(request["task"])).workload_key
        names = [objects.put(json.dumps([key, steps]).encode()) for steps in request["steps"]]
        self._over.wait(self._worker.build_seconds * len(names))
        return [astuple(BuiltKernel(name, MeasureStatus.OK, "", self._worker.build_seconds)) for name in names]

    def _timed(self, request: Mapping[str, Any], objects: Objects) -> list[MeasureResult]:
        seconds = [made_up_seconds(*json.loads(objects.get(name))) for name in request["kernels"]]
        self._over.wait(self._worker.time_seconds * len(seconds))
        return [_result(each, self._worker.time_seconds) for each in seconds]


def _result(seconds: float | None, spent: float) -> MeasureResult:
    if seconds is None:
        return MeasureResult((), MeasureStatus.RUN_TIMEOUT, "made up", spent)
    return MeasureResult((seconds,), MeasureStatus.OK, "", spent)


def command(worker: SimulatedWorker) -> list[str]:
    """The command line that runs a worker in a process of its own."""
    return [sys.executable, "-P", "-m", "benchmarks.simulated_worker", json.dumps(asdict(worker))]


def main(text: str) -> None:
    """Serve until SIGTERM, or until the process that started this one is gone."""
    end_with_parent()
    worker, over = SimulatedWorker(**json.loads(text)), threading.Event()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s", force=True)
    with Agent(ErrandStore(worker.place), worker.queues, bench=SimulatedBench(worker)) as agent:

        def end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
            over.set()
            agent.leave()

        signal.signal(signal.SIGTERM, end)
        logging.info("%s %s %s", agent.name, READY, ", ".join(worker.queues))
        while not over.wait(LOOK_SECONDS):
            agent.drain()


if __name__ == "__main__":
    main(sys.argv[1])
