"""What builds and times the programs of a run: processes of this machine, or the workers of a fleet.

They are opened once a run; processes that were started for it are gone when the block ends.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from retune.compiler.driver.worker_service import WorkerService
from retune.compiler.measure.fleet import CHUNK, Engine, FleetBuilder, FleetRunner, device_queue
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.results import Measurement
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import Candidate
from retune.tasks.engines import FlowEngine
from retune.tasks.measure import measure_round
from retune.tasks.plan import FleetPlan

LOCAL_CHUNK = 16
"""Programs in a chunk on this machine, where chunks only let builds go on beside the timing."""
WHOLE_ROUND = 1 << 20


class Workers:
    """What builds and times the programs of a run. A plain class, so that Prefect hands it on as it is."""

    def __init__(self, engine: Engine, device: str, options: MeasureOptions, at_once: int) -> None:
        self.builder = FleetBuilder(engine, options, at_once)
        self.runner = FleetRunner(engine, device, options, at_once)

    def measure(
        self, name: str, task: SearchTask, candidates: Sequence[Candidate], best_seconds: float
    ) -> list[Measurement]:
        """Build and time a round's programs. Raises: MeasureError."""
        runner = self.runner
        queue, options, at_once = device_queue(runner.key), runner.options, runner.at_once
        return measure_round(name, runner.engine, queue, task, candidates, best_seconds, options, at_once)


@contextmanager
def open_workers(options: MeasureOptions, plan: FleetPlan | None, gpu: int | None) -> Iterator[Workers]:
    """Without a plan, build processes on all cores of this machine and one process that times programs, on
    `options.threads` threads or on the GPU of a number; else the workers of a fleet.
    """
    if plan is not None:
        yield Workers(FlowEngine(plan=plan), plan.device, options, CHUNK)
        return
    with WorkerService(gpu=gpu) as service:
        at_once = LOCAL_CHUNK if service.overlaps(options, gpu=gpu is not None) else WHOLE_ROUND
        yield Workers(FlowEngine(service), "cpu" if gpu is None else f"cuda:{gpu}", options, at_once)
