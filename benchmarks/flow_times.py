"""Runs `tune-network` and writes the seconds of the flow, its rounds and their stages to a file.

Its arguments are those of the flow, as JSON, and the file name. `benchmarks.orchestration` starts it as a separate
process, in an environment prepared for Prefect. It starts Prefect's server as `retune tune` does.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retune.flows.server import embedded_server

# As in `retune tune`: the server starts while this process imports Prefect.
if __name__ == "__main__":
    SERVER = embedded_server.start()

from retune.compiler.tune.tuning import Tuning
from retune.compiler.tune.worker_service import WorkerService
from retune.flows import allocate_trials, tune_network
from retune.flows.server.run_server import watch_server
from retune.storage.parquet import ParquetRecordStore

STAGES: dict[str, tuple[type, str]] = {
    "ask": (Tuning, "ask"),
    "measure": (WorkerService, "do"),
    "store": (ParquetRecordStore, "append"),
    "tell": (Tuning, "tell"),
}
"""The work of a round, as the methods that do it."""

PARTS = ("extract_tasks", "allocate_trials", "compile_best", "publish")
"""What `tune-network` calls, in this order."""


class Stopwatch:
    """Seconds by name of wrapped functions; stages count only inside a round. `first` is when the first part of
    the flow began.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.parts: dict[str, float] = {}
        self.first = 0.0
        self.rounds = 0.0
        self.count = 0
        self._inside = False
        self._lock = threading.Lock()

    def stage(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added to stage `name`; what several threads do at once counts once."""
        active, since = 0, 0.0

        def timed(*args: Any, **named: Any) -> Any:
            nonlocal active, since
            with self._lock:
                since = since if active else time.perf_counter()
                active += 1
            try:
                return function(*args, **named)
            finally:
                with self._lock:
                    active -= 1
                    if self._inside and not active:
                        self.seconds[name] += time.perf_counter() - since

        return timed

    def round(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call of which is a round."""

        def timed(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            self._inside = True
            try:
                return function(*args, **named)
            finally:
                self._inside = False
                self.rounds += time.perf_counter() - start
                self.count += 1

        return timed

    def part(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which is called once."""

        def timed(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            self.first = self.first or start
            try:
                return function(*args, **named)
            finally:
                self.parts[name] = time.perf_counter() - start

        return timed


def main(job: str, out: str) -> None:
    """Run the flow under a stopwatch."""
    watch = Stopwatch()
    for name, (owner, method) in STAGES.items():
        setattr(owner, method, watch.stage(name, getattr(owner, method)))
    allocate_trials.tune_round = watch.round(allocate_trials.tune_round)
    for name in PARTS:
        setattr(tune_network, name, watch.part(name, getattr(tune_network, name)))
    start = time.perf_counter()
    with watch_server(SERVER):
        tune_network.tune_network(**json.loads(job))
    end = time.perf_counter()
    parts = {"start": watch.first - start, **watch.parts}
    parts["end"] = end - start - sum(parts.values())
    times = {
        "flow": end - start,
        "parts": parts,
        "rounds": watch.rounds,
        "count": watch.count,
        "stages": watch.seconds,
    }
    Path(out).write_text(json.dumps(times), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
