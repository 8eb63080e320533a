"""Runs of a network with made-up times, which end alike whatever happens to them."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulated import Simulation, command
from retune.compiler.core import config
from retune.compiler.measure.record import MeasureRecord
from retune.flows.parameters import TuneJob
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import Location
from tests.support.flows.networks import write_mlp

TRIALS, BATCH = 40, 4


PATIENCE_SECONDS = 300.0


Outcome = list[tuple[int, str, str, tuple[float, ...], str]]
"""What a run has stored that does not depend on when it did: by round, task and program."""


def outcome(home: Location, run_id: str | None = None) -> Outcome:
    """The records of a store, or of one run in it; none of them twice."""
    records = ParquetRecordStore(home).records(run_id=run_id)
    assert max(Counter((record.run_id, record.task_key, record.steps) for record in records).values()) == 1
    return sorted((r.round, r.task_key, r.steps, r.costs, r.status.name) for r in records)


@dataclass
class Lab:
    """A folder for runs of one network on one Prefect server; `home` is the state folder, `store` a URL instead."""

    folder: Path
    api: str
    name: str = "state"
    seed: int = 0
    store: str = ""

    @property
    def home(self) -> Path:
        return self.folder / self.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}-{self.seed}.txt"

    @property
    def environment(self) -> dict[str, str]:
        """As the command line makes it: Prefect is quiet."""
        paths = os.pathsep.join(entry for entry in sys.path if entry)
        return {"PYTHONPATH": paths, "PREFECT_API_URL": self.api, "PREFECT_LOGGING_LEVEL": "CRITICAL"}

    def simulation(self, **how: Any) -> Simulation:
        network = write_mlp(self.folder / "small.onnx", widths=(64, 96, 32), batch=8)
        place = self.store or str(self.home)
        job = TuneJob.of(str(network), trials=TRIALS, threads=1, seed=self.seed, batch=BATCH, home=place)
        return Simulation(job.parameters(), **how)

    @contextmanager
    def started(self, extra: dict[str, str] | None = None, **how: Any) -> Iterator["subprocess.Popen[bytes]"]:
        """The run in its own process."""
        environment = config.child_environment({**self.environment, **(extra or {})})
        with self.log.open("ab") as stream:
            process = subprocess.Popen(command(self.simulation(**how)), stdout=stream, stderr=stream, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def finish(self, extra: dict[str, str] | None = None, **how: Any) -> None:
        """Run to the end."""
        with self.started(extra, **how) as process:
            assert process.wait(PATIENCE_SECONDS) == 0, self.log.read_text()

    def stored(self) -> list[MeasureRecord]:
        return ParquetRecordStore(self.store or self.home).records()

    def wait_for(self, process: "subprocess.Popen[bytes]", holds: Callable[[], bool]) -> None:
        """Until something holds, while the run goes on."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit, self.log.read_text()
            time.sleep(0.02)

    def wait_for_rounds(self, process: "subprocess.Popen[bytes]", count: int) -> None:
        self.wait_for(process, lambda: len({record.round for record in self.stored()}) >= count)

    def stop_after(self, count: int, number: int, **how: Any) -> int:
        """Run until so many rounds are stored, then send a signal; the exit code. What was acknowledged stays."""
        with self.started(**how) as process:
            self.wait_for_rounds(process, count)
            before = {record.record_id for record in self.stored()}
            process.send_signal(number)
            code = process.wait(PATIENCE_SECONDS)
        assert before <= {record.record_id for record in self.stored()}
        return code
