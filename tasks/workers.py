"""In: how to measure, and where. Out: what builds and times programs: processes of this machine, or a fleet.

Always: opened once a run; processes that were started for it are gone when the block ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from retune.compiler.measure.fleet import FleetBuilder, FleetMeasurer, FleetRunner
from retune.compiler.measure.measurer import Builder, LocalMeasurer, Measurer, Runner
from retune.compiler.measure.options import MeasureOptions
from retune.tasks.fleet import open_courier
from retune.tasks.plan import FleetPlan


class Workers:
    """What builds and times the programs of a run. A plain class, so that Prefect hands it on as it is."""

    def __init__(self, measurer: Measurer, builder: Builder, runner: Runner) -> None:
        self.measurer = measurer
        self.builder = builder
        self.runner = runner


@contextmanager
def open_workers(options: MeasureOptions, plan: FleetPlan | None, gpu: int | None) -> Iterator[Workers]:
    """Without a plan, build processes on all cores of this machine and one process that times programs, on
    `options.threads` threads or on the GPU of a number; else the workers of a fleet.
    """
    if plan is None:
        with LocalMeasurer.with_options(options, gpu=gpu) as measurer:
            yield Workers(measurer, measurer.builder, measurer.runner)
        return
    with open_courier(plan) as courier:
        builder = FleetBuilder(courier, options.build_timeout_s)
        runner = FleetRunner(courier, plan.device, options)
        yield Workers(FleetMeasurer(builder, runner), builder, runner)
