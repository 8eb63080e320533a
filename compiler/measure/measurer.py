"""In: schedules of a task. Out: one `Measurement` each, in order. Always: a bad candidate is a value;
MeasureError means that measuring itself is impossible just now and may be tried again.
"""

import math
from collections.abc import Sequence
from typing import Protocol, Self

from compiler.measure.builder import LocalBuilder
from compiler.measure.options import MeasureOptions
from compiler.measure.results import Measurement, join
from compiler.measure.runner import LocalRunner
from compiler.schedule.steps import Step
from compiler.schedule.task import SearchTask

__all__ = ["LocalMeasurer", "Measurement", "Measurer"]

_GROUP = 4
"""How many programs are timed between two looks at what was built meanwhile."""


class Measurer(Protocol):
    """Whatever can say how fast programs are."""

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """One measurement per candidate, in order; `best_seconds` is the best cost of the task so far.

        Raises: MeasureError when nothing could be measured for reasons that lie outside the candidates.
        """
        ...


class LocalMeasurer:
    """Builds and runs candidates on this machine.

    Builds overlap timing where that leaves the timing alone: programs are timed in small groups as soon as they are
    built, on processors of their own, while the others go on building (see `LocalBuilder`). With as many threads as
    there are processors there are no others, and everything is built before anything is timed.
    """

    def __init__(self, builder: LocalBuilder, runner: LocalRunner) -> None:
        self.builder = builder
        self.runner = runner

    @classmethod
    def with_options(cls, options: MeasureOptions, n_parallel: int | None = None) -> Self:
        """A builder and a runner that follow `options`."""
        runner = LocalRunner(options=options)
        lane = runner.processors if options.overlap else ()
        return cls(LocalBuilder(options.build_timeout_s, n_parallel, lane=lane), runner)

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """Build all candidates and run them one after the other. Raises: MeasureError, see `Measurer`."""
        best = math.inf if best_seconds is None else best_seconds
        overlaps = self.runner.options.overlap and self.builder.leaves_alone(self.runner.processors)
        group = _GROUP if overlaps else len(candidates)
        found: dict[int, Measurement] = {}
        with self.builder.start(task, candidates) as work:
            while len(found) < len(candidates):
                built = work.take(group)
                runs = self.runner.run(task, [build for _, build in built], best)
                for (place, build), run in zip(built, runs, strict=True):
                    found[place] = join(build, run)
                    best = min(best, *run.costs, math.inf)
        return [found[place] for place in range(len(candidates))]

    def close(self) -> None:
        """End the worker processes."""
        self.builder.close()
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
