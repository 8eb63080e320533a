"""What builds and times the programs of a run: processes of this machine, or the workers of a fleet.

They are opened once a run; processes that were started for it are gone when the block ends.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from retune.compiler.driver.worker_service import WorkerService
from retune.compiler.measure.built_programs import BuiltPrograms
from retune.compiler.measure.fleet import CHUNK, Engine, FleetBuilder, FleetRunner, device_queue
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import DEFAULT_SCHEDULE
from retune.compiler.measure.results import Measurement
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import Candidate
from retune.tasks.engines import FlowEngine
from retune.tasks.measure import measure_round
from retune.tasks.plan import FleetPlan

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

    __slots__ = ("builder", "close", "kept", "runner")

    def __init__(
        self,
        engine: Engine,
        device: str,
        options: MeasureOptions,
        at_once: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """`close` ends processes of this machine when nothing is measured any more; it may be called twice."""
        self.close = close
        self.kept = BuiltPrograms()
        self.builder = FleetBuilder(engine, options, at_once)
        self.runner = FleetRunner(engine, device, options, at_once)

    def measure(
        self, name: str, task: SearchTask, candidates: Sequence[Candidate], best_seconds: float
    ) -> list[Measurement]:
        """Build and time a round's programs. Raises: MeasureError."""
        runner = self.runner
        queue, options, at_once = device_queue(runner.key), runner.options, runner.at_once
        built, found = measure_round(name, runner.engine, queue, task, candidates, best_seconds, options, at_once)
        default = next((one.steps_text for one in candidates if one.mutation == DEFAULT_SCHEDULE), "")
        self.kept.keep(task, [one.steps_text for one in candidates], built, found, default)
        return found


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
