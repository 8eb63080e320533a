"""What a run gains by the workers of a fleet: a real run whose workers only sleep.

    python -m benchmarks.fleet [--only REGEX] [--seconds S] [--out FILE] [--rounds N] [--batch N] [--build MS]

`benchmarks.simulated` tunes an MLP with a fleet on Dask, the same command every time, for 1, 2 and 4 workers that
build and as many that time (`benchmarks.simulated_worker`): each is one more process. A program takes `--build` and
`--time` milliseconds, which a worker sleeps, so the machine's own cores do the search and the orchestration alone. The
seconds of a round are those of all rounds after the first, search included; `--seconds` is how long a run may take.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import simulated, simulated_worker
from benchmarks.harness import Figure, Run, parse
from benchmarks.simulated import Simulation
from benchmarks.simulated_worker import READY, SimulatedWorker
from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.remote.fleet import BUILD, device_queue
from retune.flows.parameters import TuneJob
from retune.storage.files import new_id
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import ROUNDS

COUNTS = (1, 2, 4)
DEVICE = "simulated"
START_SECONDS = 120.0

_REQUEST = re.compile(r"^request: (build|time)$", re.MULTILINE)


@contextmanager
def scheduling(folder: Path, port: int = 0, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """A scheduler of Dask in its own process; the name of the fleet. Raises: MeasureError."""
    file = folder / f"{new_id()}.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    environment = config.child_environment(dict(settings or {}))
    with (folder / "scheduler.log").open("ab") as stream:
        process = subprocess.Popen(
            [*command, "--no-dashboard", "--scheduler-file", str(file)], stdout=stream, stderr=stream, env=environment
        )
    try:
        limit = time.monotonic() + START_SECONDS
        while not file.exists():
            if process.poll() is not None or time.monotonic() > limit:
                raise MeasureError(f"no scheduler started: {(folder / 'scheduler.log').read_text(encoding='utf-8')}")
            time.sleep(0.05)
        yield json.loads(file.read_text(encoding="utf-8"))["address"].replace("tcp://", "dask://")
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(worker: SimulatedWorker, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker in its own process, from the moment on at which it serves.

    Raises: MeasureError when it does not start.
    """
    with log.open("wb") as stream:
        process = subprocess.Popen(simulated_worker.command(worker), stdout=stream, stderr=stream)
    try:
        limit = time.monotonic() + START_SECONDS
        while READY not in log.read_text(encoding="utf-8"):
            if process.poll() is not None or time.monotonic() > limit:
                raise MeasureError(f"a worker did not start: {log.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait()


def requests_in(log: Path) -> int:
    """How many requests a worker has taken that build or time."""
    return len(_REQUEST.findall(log.read_text(encoding="utf-8")))


def case_of(count: int) -> str:
    """So many workers of each kind."""
    return f"{count} that build, {count} that time"


def measure(count: int, run: Run, folder: Path) -> Figure:
    """Tune with `count` workers of each kind. Raises: MeasureError when the run fails."""
    home, batch = folder / "home", run.options["batch"]
    (home / "prefect").mkdir(parents=True)
    logs = [folder / f"{kind}{number}.txt" for kind in ("build", "time") for number in range(count)]
    with ExitStack() as workers:
        fleet, trials = workers.enter_context(scheduling(folder)), run.options["rounds"] * batch
        job = TuneJob.of("mlp", trials=trials, threads=1, batch=batch, home=str(home), fleet=fleet, on_device=DEVICE)
        builder = SimulatedWorker(fleet, (BUILD,), build_seconds=run.options["build"] / 1e3)
        timer = SimulatedWorker(fleet, (device_queue(DEVICE),), time_seconds=run.options["time"] / 1e3)
        for place, log in enumerate(logs):
            workers.enter_context(serving(builder if place < count else timer, log))
        done = subprocess.run(
            simulated.command(Simulation(job.parameters())),
            env=config.child_environment(config.prefect_environment(home)),
            capture_output=True,
            text=True,
            timeout=run.seconds,
            check=False,
        )
        if done.returncode:
            raise MeasureError(f"the run failed: {done.stderr}")
    (path,) = home.glob(f"runs/*/{ROUNDS}")
    clock = [json.loads(line)["elapsed"] for line in path.read_text(encoding="utf-8").splitlines()]
    details: dict[str, object] = {
        "rounds": len(clock),
        "batch": batch,
        "programs": len(ParquetRecordStore(home).records()),
        "requests_by_builder": [requests_in(log) for log in logs[:count]],
        "requests_by_timer": [requests_in(log) for log in logs[count:]],
    }
    seconds = (clock[-1] - clock[0]) / max(1, len(clock) - 1)
    return Figure(case_of(count), "retune", 1, "seconds a round", seconds, "s", details=details)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the seconds of a round for every number of workers, and their ratio to those with the fewest."""
    run = parse(
        __doc__,
        argv,
        seconds=300,
        seconds_help="most seconds for a run",
        options={
            "rounds": (8, "rounds of a run"),
            "batch": (64, "programs in a round"),
            "build": (60, "milliseconds to build a program"),
            "time": (50, "milliseconds to time a program"),
        },
    )
    wanted = [count for count in COUNTS if run.wants(case_of(count))]
    first: float | None = None
    for count in wanted:
        with tempfile.TemporaryDirectory(prefix="retune-fleet-") as folder:
            figure = measure(count, run, Path(folder))
        first = first or figure.value
        run.write(figure)
        metric = f"times as fast as with {wanted[0]} of each"
        run.write(Figure(figure.case, "retune", 1, metric, first / figure.value, ""))


if __name__ == "__main__":
    main()
