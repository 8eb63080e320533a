"""The interface `Measurer` of measuring candidates, and this machine's measurer.

One `Measurement` a candidate, in order. A bad candidate is a value; MeasureError means that measuring is impossible at
present and may be tried again.
"""

import math
from collections.abc import Sequence
from concurrent.futures import as_completed
from itertools import islice
from typing import Protocol, Self

from retune.compiler.core.closing import Closing
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement
from retune.compiler.measure.remote.fleet import FleetBuilder, FleetRunner
from retune.compiler.measure.runner import CudaRunner, LocalRunner
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask

__all__ = ["LocalMeasurer", "Measurement", "Measurer"]

# A group pays one request to the worker; larger groups leave built programs waiting and the timing CPU idle.
_GROUP = 4
"""Programs that are timed between two checks for finished builds."""


class Measurer(Protocol):
    """Measures the speed of programs."""

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """One measurement per candidate, in order; `best_seconds` is the best cost of the task so far.

        Raises: MeasureError when nothing could be measured for reasons outside the candidates.
        """
        ...


Builder = LocalBuilder | FleetBuilder
Runner = LocalRunner | FleetRunner
"""Times kernels, on one device."""


class LocalMeasurer(Closing):
    """Builds candidates on this machine, and runs them here or on a device of a fleet.

    Builds overlap timing if they do not disturb it: programs are timed in small groups as soon as they are built, on
    CPUs of their own, while building goes on (see `LocalBuilder`). With as many threads as CPUs there are no other
    CPUs, and everything is built before anything is timed.
    """

    def __init__(self, builder: LocalBuilder, runner: Runner) -> None:
        self.builder = builder
        self.runner = runner

    @classmethod
    def with_options(cls, options: MeasureOptions, n_parallel: int | None = None, gpu: int | None = None) -> Self:
        """A builder and a runner with `options`; programs run on GPU number `gpu`, if any."""
        runner = LocalRunner(options) if gpu is None else CudaRunner(options, gpu)
        lane = runner.cpus if options.overlap else ()
        return cls(LocalBuilder(options.build_timeout_s, n_parallel, lane=lane), runner)

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """Build all candidates and run them one after another. Raises: MeasureError, see `Measurer`."""
        best = math.inf if best_seconds is None else best_seconds
        overlaps = self.runner.options.overlap and self.builder.leaves_alone(self.runner.cpus)
        group = _GROUP if overlaps else len(candidates)
        measured: dict[int, Measurement] = {}
        with self.builder.start(task, candidates) as builds:
            positions = {build: position for position, build in enumerate(builds)}
            done = as_completed(builds)
            while ready := list(islice(done, group)):
                built = [build.result() for build in ready]
                # Guests build on the timed CPUs; they pause here, and builders on other CPUs go on.
                with self.builder.quiet():
                    runs = self.runner.run(task, built, best)
                for future, run in zip(ready, runs, strict=True):
                    measured[positions[future]] = run
                    best = min(best, *run.costs, math.inf)
        return [measured[position] for position in range(len(candidates))]

    def close(self) -> None:
        """End the worker processes."""
        self.builder.close()
        self.runner.close()
