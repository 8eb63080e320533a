"""Tuning with made-up times, of a job and what is to go wrong, both given as JSON.

The same program has the same time, so two runs with one seed store the same records.

    python -m benchmarks.simulated '{"job": {...}, "pause": 0.1}'

Everything of a run is real, the search, the cost model, Prefect, the store and, where asked for, the processes that
build and run programs; only the times are a hash of the program. Tests of faults and the soak of a long run use it. A
job for a fleet goes to its workers, which `benchmarks.simulated_worker` makes.
"""

import ctypes
import json
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from prefect import flow

from retune.compiler.core import config
from retune.compiler.core.errors import RetuneError
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.remote.fleet import BuildRequest, Request, TimeRequest
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.tuning import TuningSummary
from retune.compiler.tune.worker_service import WorkerService
from retune.flows.allocate_trials import allocate_trials
from retune.flows.device import resolve_device, with_task_runner
from retune.flows.parameters import TuneJob
from retune.tasks.extract import extract_tasks
from retune.tasks.fleet.engines import FlowEngine
from retune.tasks.fleet.workers import WHOLE_ROUND, Workers, open_workers
from retune.tasks.store import complete_run, open_run

USER_ERROR = 2
PARENT_DIES = 1
"""PR_SET_PDEATHSIG, see prctl(2)."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What to run and how.

    `pause` is the time in seconds that a round's measuring takes at least. `is_real`: programs are built, run and
    checked, and only their times are made up. `workers`: a file that is told the processes that do so. The run measures
    nothing before the file `gate` exists. `clock` says by how many seconds the clock is moved when a round is measured,
    by the number of rounds this process has measured. `file_size` is the most bytes a file may have.
    """

    job: Mapping[str, Any]
    pause: float = 0.0
    is_real: bool = False
    workers: str = ""
    gate: str = ""
    clock: Mapping[str, float] | None = None
    file_size: int = 0


class SimulatedService(WorkerService):
    """Times that are a hash of the program, and one failure in sixteen unless programs are run. Building or timing one
    takes so many seconds, which are slept; a kernel is the program's own text.
    """

    def __init__(
        self,
        simulation: Simulation,
        build_seconds: float = 0.0,
        time_seconds: float = 0.0,
        *,
        is_shared: bool = False,
    ) -> None:
        super().__init__(is_shared=is_shared)
        self._simulation = simulation
        self._seconds = build_seconds, time_seconds
        self._rounds = 0
        self._names: dict[int, tuple[object, str]] = {}  # the program of a kernel, which is kept with it

    def do(self, request: Request) -> Any:
        """See `WorkerService`."""
        return self._build(request) if isinstance(request, BuildRequest) else super().do(request)

    def _build(self, request: BuildRequest) -> list[Measurement]:
        if self._simulation.is_real:
            builds: list[Measurement] = super().do(request)
        else:
            key = request.task.workload_key
            kernels = [cast(KernelArtifact, json.dumps([key, dump_steps(steps)])) for steps in request.candidates]
            time.sleep(self._seconds[0] * len(kernels))
            return [Measurement(build_seconds=0.05, artifact=kernel) for kernel in kernels]
        for build, steps in zip(builds, request.candidates, strict=True):
            self._names[id(build.artifact)] = build.artifact, dump_steps(steps)
        return builds

    def _time(self, request: TimeRequest) -> list[Measurement]:
        self._prepare()
        time.sleep(self._seconds[1] * len(request.kernels))
        found: list[Measurement] = (
            super()._time(request) or []
            if self._simulation.is_real
            else [Measurement((1.0,), MeasureStatus.OK, "", run_seconds=0.05) for _ in request.kernels]
        )
        return [self._measured(request.task, kernel, each) for kernel, each in zip(request.kernels, found, strict=True)]

    def _prepare(self) -> None:
        simulation = self._simulation
        if simulation.workers:
            pool = [worker.pid for builder in self._builders.values() for worker in builder._pool._workers]
            run = self._runner[1]._worker.pid if self._runner else None
            Path(simulation.workers).write_text(
                json.dumps({"build": [pid for pid in pool if pid], "run": run}), encoding="utf-8"
            )
        while simulation.gate and not Path(simulation.gate).exists():
            time.sleep(0.01)
        move_clock((simulation.clock or {}).get(str(self._rounds), 0.0))
        self._rounds += 1
        time.sleep(simulation.pause)

    def _text(self, task: SearchTask, kernel: object) -> tuple[str, str]:
        """Task and steps of a kernel."""
        if isinstance(kernel, str):
            key, steps = json.loads(kernel)
            return key, steps
        return task.workload_key, self._names.pop(id(kernel))[1]

    def _measured(self, task: SearchTask, kernel: object, measured: Measurement) -> Measurement:
        if measured.status is not MeasureStatus.OK:
            return measured
        seconds = made_up_seconds(*self._text(task, kernel))
        if seconds is None and not self._simulation.is_real:
            return replace(measured, costs=(), status=MeasureStatus.RUN_TIMEOUT, error="made up")
        return replace(measured, costs=(seconds or 1e-4,), censored=False, contention=None)


def made_up_seconds(task_key: str, steps: str) -> float | None:
    """The time of a program, given as steps text; None for the one in sixteen that fails."""
    number = crc32(f"{task_key} {steps}".encode())
    return None if number % 16 == 0 else 1e-4 * (1 + number / 2**32)


_read_clock, _read_clock_ns = time.time, time.time_ns


def move_clock(seconds: float) -> None:
    """Let the clock of this process go on from so many seconds later, or earlier; 0 changes nothing."""
    if seconds:
        time.time = lambda: _read_clock() + seconds
        time.time_ns = lambda: _read_clock_ns() + round(seconds * 1e9)


@contextmanager
def _workers(made: Simulation, options: MeasureOptions) -> Iterator[Workers]:
    with SimulatedService(made) as service:
        yield Workers(FlowEngine(service), "cpu", options, WHOLE_ROUND)


@flow(name="simulated", flow_run_name="simulated")
def simulated(simulation: dict[str, Any]) -> TuningSummary:
    """Tune as `tune_network` does, without compiling the network in the end."""
    made = Simulation(**simulation)
    job = resolve_device(TuneJob.of(**made.job))

    extracted = extract_tasks(ImportedNetwork(job.network, job.shapes), job.target, job.threads)
    options = job.measuring(extracted.constant_bytes)
    with open_run(job.location, job.fingerprint(extracted.task_keys), job.describe()) as run:
        with _workers(made, options) if job.plan is None else open_workers(options, job.plan, None) as workers:
            spent = with_task_runner(allocate_trials, job)(job, extracted, run.run_id, workers)
        complete_run(run.run_id, job.location, {"trials": spent.trials})
    return spent


def command(simulation: Simulation) -> list[str]:
    """The command line that runs a simulation in its own process."""
    return [sys.executable, "-P", "-m", "benchmarks.simulated", json.dumps(asdict(simulation))]


def end_with_parent() -> None:
    """Let this process be killed when the thread that started it is gone, and so when its process is."""
    ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGKILL)


def main(text: str) -> int:
    """Run one simulation; 2 for an error of ours, with a sentence on stderr. Ends with the process that started it."""
    end_with_parent()
    simulation = json.loads(text)
    if simulation["file_size"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (simulation["file_size"], resource.RLIM_INFINITY))
    try:
        spent = simulated(simulation)
    except RetuneError as error:
        sys.stderr.write(f"retune: {error}\n")
        return USER_ERROR
    sys.stdout.write(f"{spent.trials} trials in {spent.rounds} rounds by {config.engine_version()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
