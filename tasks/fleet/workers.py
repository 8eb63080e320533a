"""The builder and the runner of a run: processes of this machine, or workers of the fleet.

They are opened once a run; processes that were started for it are gone when the block ends.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, TaskProgram, in_order
from retune.compiler.measure.remote.fleet import (
    BUILD,
    CHUNK,
    BuildRequest,
    FleetBuilder,
    FleetRunner,
    TimeRequest,
    chunks,
    device_queue,
)
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.winners import BuiltPrograms
from retune.compiler.tune.worker_service import WorkerService
from retune.storage.files import new_id
from retune.tasks.chain import Chain, finished_state
from retune.tasks.fleet.engines import FlowEngine, Run
from retune.tasks.fleet.plan import FleetPlan

LOCAL_CHUNK = 16
"""Programs in a chunk on this machine, where chunks only let builds go on beside the timing: the first chunk is built
before anything is timed, and the last one timed after all is built. The two task runs of a chunk cost some 30 ms of
CPU, less than to build one program, so larger chunks would lose more than they save.
"""
WHOLE_ROUND = 1 << 20
"""Where builds and timing need the same cores, a round is one chunk, and five task runs in all."""


class Workers:
    """What builds and times the programs of a run. A plain class, so that Prefect hands it on as it is.

    It has slots and no `__dict__`: as a parameter of a flow, Prefect stores its name and does not write it as JSON.
    """

    __slots__ = ("builder", "close", "engine", "kept", "runner")

    def __init__(
        self,
        engine: FlowEngine,
        device: str,
        options: MeasureOptions,
        at_once: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """`close` ends processes of this machine when nothing is measured any more; it may be called twice."""
        self.close = close
        self.engine = engine
        self.kept = BuiltPrograms()
        self.builder = FleetBuilder(engine, options, at_once)
        self.runner = FleetRunner(engine, device, options, at_once)

    def measure(
        self, chain: Chain, name: str, task: SearchTask, candidates: Sequence[TaskProgram], best_seconds: float
    ) -> list[Measurement]:
        """Build a round's programs in chunks and time each chunk once it is built. All follow the last run of `chain`,
        and what comes next follows them. Raises: MeasureError.
        """
        runner = self.runner
        queue, options = device_queue(runner.key), runner.options
        steps = [load_steps(candidate.steps) for candidate in candidates]
        requests = [BuildRequest(task, part, options) for part in chunks(steps, runner.at_once)]
        names = [f"{name}-{number}" if len(requests) > 1 else name for number in range(len(requests))]
        # By this name a worker knows chunks of one round, and gives up early what is slower than those before.
        token = new_id()
        built: list[Measurement] = []
        runs: list[Run] = []
        try:
            for each, request in zip(names, requests, strict=True):
                runs.append(self.engine.submit(BUILD, request, each, chain.last))
            # In order of submission: a chunk is timed as soon as it is built, while later chunks build.
            for each, build in zip(names, runs[:], strict=True):
                builds: list[Measurement] = build.result()
                built += builds
                timed = TimeRequest.of(task, builds, options, best=best_seconds, round=token)
                if timed.kernels:
                    runs.append(self.engine.submit(queue, timed, each, [finished_state(build.future.task_run_id)]))
            measurements = in_order(built, [time for run in runs[len(requests) :] for time in run.result()])
        # Also on Ctrl-C: requests that are left would occupy the fleet after the run has ended.
        except BaseException:
            for run in runs:
                run.cancel()
            raise
        chain.last = [finished_state(run.future.task_run_id) for run in runs]
        self.kept.keep(task, candidates, measurements)
        return measurements


@contextmanager
def open_workers(options: MeasureOptions, plan: FleetPlan | None, gpu: int | None) -> Iterator[Workers]:
    """Without a plan, build processes on all cores of this machine and one process that times programs, on
    `options.threads` threads or on the GPU of a number, and holds the device's lock meanwhile; else the workers of a
    fleet.
    """
    if plan is not None:
        yield Workers(FlowEngine(plan=plan), plan.device, options, CHUNK)
        return
    with WorkerService(gpu=gpu, is_shared=True) as service:
        # Without CPUs to spare chunks would only alternate building and timing, and pay a task run for each.
        at_once = LOCAL_CHUNK if service.overlaps(options) else WHOLE_ROUND
        device = "cpu" if gpu is None else f"cuda:{gpu}"
        yield Workers(FlowEngine(service), device, options, at_once, service.close)
